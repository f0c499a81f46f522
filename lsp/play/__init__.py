"""The playground: a local page on which schedulers decode side by side, and the routes of an OpenAI server for a look.

It serves the one who started it, on this machine: one model, one pass at a time. It is no server for others; that is
SGLang's work (docs/scale.md).
"""

from lsp.play.app import create_app
from lsp.play.playground import Playground

__all__ = ["Playground", "create_app"]
