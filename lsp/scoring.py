"""The old place of `lsp.decoding.Step`, kept for one release."""

from lsp.decoding.step import Step
from lsp_kernels.errors import deprecated


def __getattr__(name: str) -> type[Step]:
    if name == "Scores":
        deprecated("lsp.scoring.Scores", "lsp.decoding.Step")
        return Step
    raise AttributeError(f"module 'lsp.scoring' has no attribute {name!r}")
