"""The difference between traces of one question in one line, as `assets/words.js` tells it on the page."""

from __future__ import annotations

from collections.abc import Sequence

from lsp.tracing.records import Trace
from lsp.tracing.states import was_stopped


def headline(traces: Sequence[Trace]) -> str:
    """Costs of the cheapest one, instead of those of the dearest one; empty if they do not answer one question.

    Examples
    --------
    >>> import lsp
    >>> model, prompt = lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\\n"
    >>> headline([lsp.trace(model, prompt, max_new_tokens=32, scheduler=name)[0] for name in ("lsp", "full")])
    '2 passes and 50 positions instead of 19 and 333'
    """
    if any(asked(one) != asked(traces[0]) for one in traces):
        return ""
    if any(map(was_stopped, traces)):
        counts = [f"{one.passes:,}{' (stopped)' if was_stopped(one) else ''}" for one in traces]
        return f"Passes: {' and '.join(filter(None, [', '.join(counts[:-1]), counts[-1]]))}"
    few, many = min(traces, key=lambda one: one.positions), max(traces, key=lambda one: one.positions)
    costs = f"{few.passes} pass{'' if few.passes == 1 else 'es'} and {few.positions:,} positions"
    if (few.passes, few.positions) == (many.passes, many.positions):
        return costs
    return f"{costs} instead of {many.passes:,} and {many.positions:,}"


def asked(trace: Trace) -> tuple[list[int], list[tuple[int, int]], int]:
    """What a trace answers: the ids before the first mask, the given ones after it, how many positions."""
    pairs = enumerate(zip(trace.tokens, trace.committed_in, strict=True))
    return trace.prompt, [(at, token) for at, (token, number) in pairs if number < 0], trace.max_new_tokens
