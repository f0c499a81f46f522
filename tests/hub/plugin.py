"""A pytest plugin that lets tests of `lsp_kernels` run on a copy from a folder for the kernels hub, LSP_HUB_FOLDER.

The installed package is loaded first and stays loaded: two sets of operators and two C++ libraries are in the process.
Then the tests find the modules of the copy under the names of the package. LSP_HUB_BACKEND chooses a variant.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import lsp_kernels as installed
import lsp_kernels._ops as installed_ops
from tests.hub.loader import load

FOLDER, BACKEND = Path(os.environ["LSP_HUB_FOLDER"]), os.environ.get("LSP_HUB_BACKEND", "cpu")
# What looks at the repository, or starts processes of its own, says nothing of the copy.
ELSEWHERE = ("test_package.py", "test_copy.py", "test_fuzz.py")


def take_its_place(copy: ModuleType) -> None:
    """Under ``lsp_kernels`` and its submodules, ``import`` finds the copy."""
    for found in pkgutil.walk_packages(copy.__path__, f"{copy.__name__}."):
        if found.name != f"{copy.__name__}.lsp_kernels":  # the folder for old versions of `kernels`
            importlib.import_module(found.name)
    for name in [name for name in sys.modules if name.split(".")[0] == "lsp_kernels"]:
        del sys.modules[name]
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == copy.__name__:
            sys.modules["lsp_kernels" + name.removeprefix(copy.__name__)] = module


COPY = load(FOLDER, BACKEND)
take_its_place(COPY)


def pytest_report_header() -> str:
    from lsp_kernels import _ops

    assert COPY is not installed
    assert _ops is not installed_ops
    served = "Python alone" if _ops.cpp is None else _ops.cpp.__file__
    loader = os.environ.get("LSP_HUB_LOADER", "the stand-in for kernels.get_local_kernel")
    return f"lsp_kernels is {COPY.__name__} ({served}), loaded by {loader}, beside {installed.__file__}"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name in ELSEWHERE else None
