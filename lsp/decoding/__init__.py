"""The decoding loop and its parts, for every model and every scheduler.

`loop` is the paper's Algorithm 1; `canvas` is one sequence, `seats` are those that are decoded together, `batch` lays
out a pass over them, `step` is what a scheduler sees of it, `writer` turns committed tokens into text. What a
prompt is, and when to show text, is decided in `lsp.generation`.
"""

from lsp.decoding.loop import decode
from lsp.decoding.options import Options
from lsp.decoding.progress import DecodingError, Progress
from lsp.decoding.scheduler import Chosen, Custom, Scheduler
from lsp.decoding.step import Step

__all__ = ["Chosen", "Custom", "DecodingError", "Options", "Progress", "Scheduler", "Step", "decode"]
