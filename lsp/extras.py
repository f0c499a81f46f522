"""The packages that `lsp` needs beside torch: one sentence says which is missing and how to install it.

`lsp_kernels` needs none of them. Importing this module asks for numpy, which all of `lsp` needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "lsp": ("huggingface_hub", "numpy", "rich", "safetensors", "tokenizers", "transformers", "typer"),
    "plots": ("matplotlib",),
    "play": ("starlette", "uvicorn"),
    "eval": ("lm_eval",),
    "ray": ("ray",),
}


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Around imports: if one fails because a package is not installed, the error names the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).split(".")[0]
        for extra, packages in EXTRAS.items():
            if package in packages:
                sentence = f"{what} needs {package}: pip install 'lsp-kernels[{extra}]'"
                raise ModuleNotFoundError(sentence, name=error.name) from None
        raise


with needed_by("lsp"):
    import numpy as numpy
