"""docs/benchmarks.md from a run: every table, in the order of the families, with words on how to read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.llada_8b import ways
from bench.ratios import Row, Target, amount, three
from bench.report.markdown import table
from bench.report.plots import drawings
from bench.report.run import Run, tables
from bench.report.short import short

TOP = """# Benchmarks

`make bench` writes this page, its plots and the tables of the README from one run and keeps its numbers in
`benchmarks/run.json`. Nothing here is edited by hand, and a test fails when these differ. Run it yourself:

```
make bench                       # everything, correctness checked first
make bench RESUME=1              # go on with a run that was interrupted; a new run keeps the older one as run.1.json
make bench ONLY="commit head"    # some families alone (bench/bench_<family>.py), in a file of their own
make bench-check                 # what is more than 15 % worse than in the baseline
python -m bench.llada_8b FOLDER  # LLaDA-8B's shape in bfloat16 and int8; writes 16 GB of random weights, after asking
```

"""
EMPTY = """No run has been taken over yet, so there is no number on this page.
"""
WORDS = """The first number of a line is a time (or a size); numbers without a unit are multiples of it.
Contenders take turns in one process, and each number is a median; slow ones have fewer turns, and what takes longer
than about half a minute runs once. A *limit* is the time of reading the same bytes, or of as many operations at the
rate of a 1024-cubed matrix product, measured beside the others. Of a result of ours that is wrong no time is shown.
"""
FAMILIES = {
    "commit": """## Commit

Every row is scored. *topk(2)* gives margins and no more. *Fast-dLLM* (and LLaDA): argmax, a softmax in float64,
gather. *Flash-dLLM*: the same softmax, and one number per sequence of 32 rows that the host reads. *Dream* (and
d2Cache): the difference of the two largest of a sorted softmax.
""",
    "head": """## LM head

`F.linear` alone commits nothing; *+* means after it; *tiles* is a plain loop over 2048 ids at a time.
""",
    "attention": """## Attention

*cat + SDPA* is what most code does in every layer of every pass; *SDPA on a view* has all keys in place already. A
ragged batch is padded for torch, and a mask hides what is not there.
""",
    "block": """## Block

Norm with residual, rotary embedding, gated product. *torch* is what models are written with; the limit is a read of
the operands.
""",
    "product": """## Products for few rows

The limit is a read of the weight, or as many operations at the rate of a large product. An *int8 weight* is half of
bfloat16; *_int_mm* rounds the activations too.
""",
    "int8": """## Weights in 8 bits

`lsp.load(..., dtype="int8")` holds the weights of a block's products in 8 bits with a scale per output. They are
widened as they are read, and activations stay as they are. What it is for is memory: half of bfloat16 for the blocks.
What it costs is here: the time of a pass, and answers that differ. `python -m bench.llada_8b` has time and memory at 8
billion parameters.
""",
    "answers": """## End to end

The embedded model (2 M parameters, real weights and problems) and models of 100 M and 300 M parameters with random
weights, float32. A model with random weights is sure of nothing, so its passes commit what each scheduler committed
on the embedded model: the same positions in the same passes; scheduler, head and softmax run as ever. *LLaDA's loop*
(Full): one token a pass, everything computed anew, all of its passes alike; of large models four are timed.
*Fast-dLLM's loop*: threshold 0.9, blocks of 32, its prefix cache, `torch.cat` + SDPA, every position through the head,
a softmax in float64. *Same Threshold, our loop*: the same passes. *Threshold, our cache*: no blocks, frozen as soon as
possible, and it ends at a stop. *LSP*: the default. The prompts of a batch are equally long, so nobody pads.
""",
    "growth": """## Growth

A prompt and an answer of other lengths. Of every kind of pass three are timed, and a parabola through them gives all;
counted operations agree within 1 %. Exponents are slopes of least squares on logarithms, with standard errors.
""",
    "decode": """## The loop

Its own cost, sampling, and every scheduler on the embedded model.
""",
    "model": """## A pass of the model
""",
    "batches": """## Batches
""",
    "integrations": """## Drop-ins

One step over 64 masked positions, everything but the model.
""",
    "parallel": """## Tensor parallel
""",
}
"""The sections; other families follow with their own names."""
LLADA = """## LLaDA-8B's shape

`python -m bench.llada_8b FOLDER --json docs/benchmarks/llada_8b.json`: random weights, 64 tokens after a prompt of 64,
one run of each way. All ways commit a quarter of the answer in each of four passes. *Fast-dLLM's loop*: prompt and
answer in the first pass, then its prefix cache, every position through the head, a softmax in float64; the products of
its blocks are those of our models, which read int8. The peak is that of all ways.
"""


def text(run: Run | None, llada: Mapping[str, Any] | None = None) -> str:
    """The page of a run and of what was measured with LLaDA-8B's shape; both may be missing."""
    whole = TOP + EMPTY if run is None else TOP + "\n".join(parts(run))
    return "\n".join([whole, *of_llada(llada)]) if llada else whole


def of_llada(kept: Mapping[str, Any]) -> Iterator[str]:
    machine, found = kept["machine"], kept["found"]
    yield LLADA
    yield f"{machine['processor']}, {machine['threads']} threads, commit {machine['commit']}.\n"
    heads = ["dtype of the blocks: way", "time", "passes", "a pass", "over Fast-dLLM's loop"]
    yield table(heads, (line for dtype, of in found.items() for line in lines_of_llada(dtype, of)))
    heads, sizes = ["dtype of the blocks", "weights", "peak", "load"], ("held", "peak")
    rows = ([name, *(amount(of[size], "bytes") for size in sizes), amount(of["load"])] for name, of in found.items())
    yield table(heads, rows)


def lines_of_llada(dtype: str, found: Mapping[str, float]) -> Iterator[list[str]]:
    rival = next((found[way] for way in ways(found) if "Fast-dLLM" in way), None)
    for way in ways(found):
        passes, over = found[f"{way}: passes"], three(found[way] / rival) if rival else "-"
        yield [f"{dtype}: {way}", amount(found[way]), f"{passes:.0f}", amount(found[way] / passes), over]


def parts(run: Run) -> Iterator[str]:
    begun, ended = run.sessions[0].get("begun", "?"), run.sessions[-1].get("ended", "?")
    yield f"{len(run.tests)} benchmarks, {run.minutes:.0f} minutes, from {begun} to {ended}.\n"
    if not run.is_whole:
        yield "**This run is not whole.**\n"
    yield "## Machine and versions\n"
    yield "".join(f"- {name}: {value}\n" for name, value in run.machine.items())
    yield "## In short\n"
    yield from (part for part in short(run, "benchmarks").values() if part)
    yield "## How to read the tables\n"
    yield WORDS
    plotted = [name for name, (numbers, *_) in drawings(run).items() if numbers]
    for family in [*FAMILIES, *(name for name in run.families if name not in FAMILIES)]:
        yield from section(family, tables(run.rows(family)), plotted)
    yield from targets(run.targets)


def section(family: str, found: dict[str, list[Row]], plotted: Sequence[str]) -> Iterator[str]:
    if not found:
        return
    yield FAMILIES.get(family, f"## {family.capitalize()}\n")
    if family in PLOTS and family in plotted:
        yield f"![{PLOTS[family]}](benchmarks/{family}.svg)\n"
    for title, rows in found.items():
        columns = list(dict.fromkeys(name for row in rows for name in row.cells))
        yield f"### {title}\n"
        yield table(["", *columns], ([row.case, *(row.cells.get(name, "-") for name in columns)] for row in rows))


PLOTS = {
    "commit": "time over the limit, by rows",
    "attention": "time of attention over the length of the prefix",
    "answers": "time of an answer by part",
}
"""Plots of a family, and what they show; that of the growth is in the short part."""


def targets(found: Sequence[Target]) -> Iterator[str]:
    """Every figure that is asked for, the missed ones first."""
    if not found:
        return
    yield "## Targets\n"
    yield f"{sum(each.met for each in found)} of {len(found)} were met on this machine.\n"
    lines = [[each.what, each.asked, each.measured, "met" if each.met else "**MISSED**"] for each in found]
    yield table(["figure", "asked", "measured", ""], sorted(lines, key=lambda line: line[-1] == "met"))
