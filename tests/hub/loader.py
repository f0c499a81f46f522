"""Loads a kernel from a folder for the kernels hub.

`get_local_kernel` stands for the function of that name in the package `kernels` (0.17), which the ordinary tests do
without: it looks for the variants of this system under build/, takes those with the stable ABI before those in Python
alone, and imports ``__init__.py`` as the module that metadata.json names. With ``LSP_HUB_LOADER=kernels`` the real one
is taken.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path
from types import ModuleType

import torch


def get_local_kernel(folder: Path, *, backend: str = "cpu") -> ModuleType:
    suited = [variant for variant in sorted((folder / "build").iterdir()) if suits(variant.name, backend)]
    if not suited:
        raise FileNotFoundError(f"Invalid folder: expected a variant for {backend}, got none in {folder / 'build'}")
    variant = max(suited, key=lambda variant: "stable-abi" in variant.name)
    name = json.loads((variant / "metadata.json").read_text())["id"]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def suits(variant: str, backend: str) -> bool:
    if variant == f"torch-{backend}":
        return True
    found = re.fullmatch(r"torch-stable-abi(\d)(\d+)-(\w+)-(\w+)-(\w+)", variant)
    if found is None:
        return False
    oldest, here = (int(found[1]), int(found[2])), tuple(int(part) for part in torch.__version__.split(".")[:2])
    return oldest <= here and found.groups()[2:] == (backend, platform.machine(), platform.system().lower())


def load(folder: Path, backend: str = "cpu") -> ModuleType:
    """By the loader that was asked for. The real one gives a backend that torch was not built for to nobody."""
    if os.environ.get("LSP_HUB_LOADER") == "kernels" and backend == "cpu":
        import kernels

        return kernels.get_local_kernel(folder, backend=backend)
    return get_local_kernel(folder, backend=backend)
