"""The old place of `lsp.tracing.html` and `lsp.tracing.terminal`, kept for one release."""

from importlib import import_module
from types import ModuleType

from lsp_kernels.errors import deprecated


def __getattr__(name: str) -> ModuleType:
    if name in ("html", "terminal"):
        deprecated(f"lsp.render.{name}", f"lsp.tracing.{name}")
        return import_module(f"lsp.tracing.{name}")
    raise AttributeError(f"module 'lsp.render' has no attribute {name!r}")
