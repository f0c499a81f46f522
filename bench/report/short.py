"""What a reader wants to know first: one line per operation, what the loop and the scheduler gain, how costs grow.

The same text stands at the top of docs/benchmarks.md and in the README.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.ratios import LIMIT, OURS, Row, amount, three
from bench.report.markdown import table
from bench.report.run import Run, tables

CHOSEN = [
    "bench/bench_commit.py::bench_commit_prefix[64x126464-float32]",
    "bench/bench_commit.py::bench_commit_prefix[64x126464-bfloat16]",
    "bench/bench_commit.py::bench_commit_prefix[1024x126464-float32]",
    "bench/bench_commit.py::bench_token_stats[64x126464-float32]",
    "bench/bench_commit.py::bench_token_stats[64x126464-bfloat16]",
    "bench/bench_head.py::bench_linear_commit_prefix[64-1024-126464-torch.float32]",
    "bench/bench_head.py::bench_linear_commit_prefix[64-1024-126464-torch.bfloat16]",
    "bench/bench_attention.py::bench_suffix_attention[32/32-torch.float32]",
    "bench/bench_attention.py::bench_suffix_attention[32/32-torch.bfloat16]",
    "bench/bench_attention.py::bench_suffix_attention[28/4-torch.float32]",
    "bench/bench_attention.py::bench_suffix_attention[28/4-torch.bfloat16]",
    "bench/bench_attention.py::bench_ragged_batch[32/32-torch.float32]",
    "bench/bench_attention.py::bench_ragged_batch[32/32-torch.bfloat16]",
    "bench/bench_product.py::bench_linear[64-(4096, 4096)-torch.float32]",
    "bench/bench_product.py::bench_linear[64-(4096, 4096)-torch.bfloat16]",
    "bench/bench_block.py::bench_add_norm[64-torch.float32]",
    "bench/bench_block.py::bench_rotate[64-torch.float32]",
    "bench/bench_block.py::bench_silu_mul[64-torch.float32]",
]
"""Benchmarks of the first table, by their names in pytest; what a run lacks is left out."""

DEFINITIONS = ("reference", "compiled reference")
ANSWER = "an answer, end to end"
LOOPS = ("LLaDA's loop", "Fast-dLLM's loop", "same Threshold, our loop", "Threshold, our cache", "LSP")
PLOT = "growth.svg"

TIMES = """Times of the others as multiples of ours. *Of the limit* is ours over reading the same bytes, or over as many
operations at the rate of a large matrix product, whichever takes longer. """
GAINS = """Time of an answer. *The loop gains* compares the same passes of the same scheduler, so only the code differs;
then our cache takes the place of Fast-dLLM's, without blocks, and an answer ends at its stop; then our scheduler takes
the place of the threshold. """
GROWS = """How the time of an answer grows. An exponent is a slope on two logarithmic axes: with 1.00, twice the length
takes twice the time."""


def short(run: Run, plots: str) -> dict[str, str]:
    """The sections by name; `plots` is the folder of the plots, as a link from the text has it."""
    return {"ratios": ratios(run), "loop": loop(run), "growth": growth(run, plots)}


def ratios(run: Run) -> str:
    rows = [row for name in CHOSEN if name in run.tests for row in run.rows_of(name)]
    if not rows:
        return ""
    heads = ["operation", "ours", "of the limit", *DEFINITIONS, "what others do"]
    return f"{TIMES}{source(run)}\n\n{table(heads, map(line, rows))}"


def line(row: Row) -> list[str]:
    ours = row.values[OURS]
    others = [name for name in row.values if name not in (*row.ours, LIMIT, *DEFINITIONS)]
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
    plot = f"![time of an answer over its length and the prompt's]({plots}/{PLOT})"
    return f"{GROWS}\n\n{plot}\n\n{table(heads, ([of, *cells.values()] for of, cells in lines))}"


def exponents(run: Run) -> Iterator[tuple[str, dict[str, str]]]:
    for title, rows in tables(run.rows("growth")).items():
        fitted = next((row for row in rows if row.case == "exponent of seconds"), None)
        if fitted is not None:
            yield title.replace(": ", ", "), fitted.cells


def source(run: Run) -> str:
    machine = run.machine
    return f"{machine['processor']}, {machine['threads']} threads, {machine['instruction set'].split(' ')[0]}; one run."
