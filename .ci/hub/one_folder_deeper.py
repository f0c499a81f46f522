"""For versions of `kernels` that look for the kernel one folder deeper: the names of the package around this folder."""

import importlib.util
import json
import sys
from pathlib import Path

_folder = Path(__file__).parents[1]
_name = json.loads((_folder / "metadata.json").read_text("utf-8"))["id"]
if _name not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_name, _folder / "__init__.py")
    sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_name])
__all__ = sys.modules[_name].__all__
globals().update({name: getattr(sys.modules[_name], name) for name in __all__})
