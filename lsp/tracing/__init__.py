"""What every pass of decoding saw and did: recorded, saved as JSON lines, shown as a page or in a terminal."""

from lsp.tracing.flips import flip_rate
from lsp.tracing.recorder import trace
from lsp.tracing.records import PassRecord, RuleRecord, Trace

__all__ = ["PassRecord", "RuleRecord", "Trace", "flip_rate", "trace"]
