"""What a reader wants to know first: one line per operation, what the loop and the scheduler gain, how costs grow.

The same text stands at the top of docs/benchmarks.md and in the README.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.ratios import LIMIT, OURS, Row, amount, three
from bench.report.markdown import table
from bench.report.run import Run, tables

CHOSEN = {
    "commit_prefix": ["64 x 126464 float32", "64 x 126464 bfloat16", "1024 x 126464 float32"],
    "linear_commit_prefix": ["64 rows, d = 1024, 126464 ids, float32", "64 rows, d = 1024, 126464 ids, bfloat16"],
    "suffix_attention, 64 queries on a prefix of 1024": ["32/32 heads, float32", "28/4 heads, float32"],
    "suffix_attention, ragged batch of 8": ["32/32 heads, float32"],
    "add_norm": ["64 rows of 4096, float32"],
    "rotate_": ["64 rows of 5120, float32"],
    "silu_mul": ["64 rows of 24576, float32"],
}
"""Tables and cases of the first table; what a run lacks is left out."""

DEFINITIONS = ("reference", "compiled reference")
BESIDE = ("with noise", "with log-odds", "with entropy")  # ours too, and more work
ANSWER = "an answer, end to end"
LOOPS = ("LLaDA's loop", "Fast-dLLM's loop", "same Threshold, our loop", "Threshold, our cache", "LSP")
PLOT = "growth.svg"

TIMES = """Times of the others as multiples of ours. *Of the limit* is ours over reading the same bytes, or over as many
operations at the rate of a large matrix product, whichever takes longer. """
GAINS = """Time of an answer. *The loop gains* compares the same passes of the same scheduler, so only the code differs;
then our cache takes the place of Fast-dLLM's, without blocks, and an answer ends at its stop; then our scheduler takes
the place of the threshold. """


def short(run: Run, plots: str) -> dict[str, str]:
    """The sections by name; `plots` is the folder of the plots, as a link from the text has it."""
    return {"ratios": ratios(run), "loop": loop(run), "growth": growth(run, plots)}


def ratios(run: Run) -> str:
    found = tables(run.rows())
    rows = [row for title, cases in CHOSEN.items() for row in found.get(title, []) if row.case in cases]
    if not rows:
        return ""
    heads = ["operation", "ours", "of the limit", *DEFINITIONS, "what others do"]
    return f"{TIMES}{source(run)}\n\n{table(heads, map(line, rows))}"


def line(row: Row) -> list[str]:
    ours = row.values[OURS]
    others = [name for name in row.values if name not in (OURS, LIMIT, *DEFINITIONS, *BESIDE)]
    known = [f"{three(row.values[name] / ours)}x" if name in row.values else "-" for name in DEFINITIONS]
    limit = three(ours / row.values[LIMIT]) if LIMIT in row.values else "-"
    rivals = ", ".join(f"{name} {three(row.values[name] / ours)}x" for name in others)
    return [f"{row.title}: {row.case}", amount(ours), limit, *known, rivals]


def loop(run: Run) -> str:
    """Fast-dLLM's loop, the same scheduler with the same cache in ours, then our cache, then our scheduler."""
    rows = tables(run.rows()).get(ANSWER, [])
    if not rows:
        return ""
    heads = ["an answer", *LOOPS, "the loop gains", "cache and early stop", "the scheduler"]
    return f"{GAINS}{source(run)}\n\n{table(heads, map(loop_line, rows))}"


def loop_line(row: Row) -> list[str]:
    _, fast, same, cached, lsp = (row.values[name] for name in LOOPS)
    gains = [fast / same, same / cached, cached / lsp]
    return [row.case, *(amount(row.values[name]) for name in LOOPS), *(f"{three(gain)}x" for gain in gains)]


def growth(run: Run, plots: str) -> str:
    lines = list(exponents(run))
    if not lines:
        return ""
    heads = ["exponent of the time", *lines[0][1]]
    words = f"![time of an answer over its length and the prompt's]({plots}/{PLOT})\n\n"
    return words + table(heads, ([of, *cells.values()] for of, cells in lines))


def exponents(run: Run) -> Iterator[tuple[str, dict[str, str]]]:
    for title, rows in tables(run.rows("growth")).items():
        fitted = next((row for row in rows if row.case == "exponent of seconds"), None)
        if fitted is not None:
            yield title.split(":")[0], fitted.cells


def source(run: Run) -> str:
    machine = run.machine
    return f"{machine['processor']}, {machine['threads']} threads, {machine['instruction set'].split(' ')[0]}; one run."
