"""Every scheduler, with every option of the loop, does what a brute-force simulation does, pass by pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lsp
from lsp_kernels import PrefixRule, Vocabulary
from tests.lsp.recorder import scripted
from tests.lsp.simulation import Ambiguous, script, simulate

SIZE, MASK, DELIMITERS, STOPS = 13, 12, (0, 3, 4), (7, 12)  # the mask is a stop too, which it may not become
GUARDED = PrefixRule.guarded()
SCHEDULERS = {
    "paper": lsp.LongestStablePrefix(PrefixRule()),
    "paper keep": lsp.LongestStablePrefix(PrefixRule(0.3, 0.7, no_delimiter="keep", window=2)),
    "guarded": lsp.LongestStablePrefix(),
    "guarded half": lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=0.5, min_length=2, no_delimiter="minimum")),
    "islands": lsp.LongestStablePrefix(GUARDED, islands=3.0),
    "islands best": lsp.LongestStablePrefix(PrefixRule(floor=5.0, beta=1, snap=False), islands=8.0, stuck="best"),
    "islands all": lsp.LongestStablePrefix(PrefixRule(floor=math.inf, beta=1, snap=False), islands=0.0),
    "fixed": lsp.FixedPrefix(3),
    "full": lsp.Full(),
    "topk": lsp.TopK(3),
    "threshold": lsp.Threshold(0.7),
    "threshold high": lsp.Threshold(1.0),
    "factor": lsp.Factor(1.5),
    "factor low": lsp.Factor(0.2),
    "scattered": lsp.ScatteredMargin(),
    "scattered floor": lsp.ScatteredMargin(PrefixRule(floor=1.0, beta=0.8, min_length=4)),
    "prophet": lsp.Prophet(),
    "prophet region": lsp.Prophet(thresholds=(3.0, 4.0, 0.5), region=4),
}


@st.composite
def options(draw: st.DrawFn, lookahead: bool) -> dict:
    block = draw(st.sampled_from([None, None, 1, 3, 4, 50]))
    cache = draw(st.sampled_from(["prefix", "prefix", "block", "none"] if block else ["prefix", "prefix", "none"]))
    out = {"block_length": block, "cache": cache, "stop_early": draw(st.booleans())}
    if lookahead:
        out["lookahead"] = draw(st.sampled_from([None, None, 1, 2, 5, 0 if block else 3]))
    if cache != "block":
        out["refresh_every"] = draw(st.sampled_from([None, None, 1, 2, 3]))
    return out


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_commits_windows_and_cache_slots_are_those_of_the_simulation(name: str, data: st.DataObject) -> None:
    """Also the provenance of every cache slot, after every pass: which pass wrote it, and from which token."""
    scheduler = SCHEDULERS[name]
    shifted = data.draw(st.booleans(), "shifted")
    chosen = data.draw(options(lookahead=not isinstance(scheduler, lsp.Prophet)), "options")
    new = data.draw(st.integers(0, 11), "new")
    lengths = data.draw(st.lists(st.integers(int(shifted), 6), min_size=1, max_size=3), "prompts")
    seed = data.draw(st.integers(0, 10**6), "seed")
    rows = script(seed, SIZE, MASK, ties=data.draw(st.booleans(), "ties"))
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, MASK, size=n).tolist() for n in lengths]
    try:
        expected = [
            simulate(
                rows, prompt, new, scheduler, mask=MASK, shifted=shifted, stops=STOPS, delimiters=DELIMITERS, **chosen
            )
            for prompt in prompts
        ]
    except Ambiguous:
        assume(False)

    model = scripted(rows, SIZE, MASK, shifted=shifted)
    vocabulary = Vocabulary(SIZE, DELIMITERS, STOPS, suppress=[MASK])
    for progress in lsp.decode(model, prompts, new, scheduler, vocabulary, lsp.Options(**chosen)):
        assert progress.passes == len(model.passes)
    assert progress.passes == max((len(e.passes) for e in expected), default=0)
    for b, (canvas, wanted) in enumerate(zip(progress.canvases, expected, strict=True)):
        got = [segments[b] for segments in model.passes]
        for index, step in enumerate(wanted.passes):
            assert got[index].positions == list(range(step.start, step.end)), f"pass {index}"
            assert (got[index].append, got[index].held) == (step.append, step.start), f"pass {index}"
            assert model.slots[index][b] == wanted.slots[index], f"pass {index}"
        assert all(not segment.tokens and not segment.append for segment in got[len(wanted.passes) :])
        assert canvas.run.tolist() == wanted.tokens
        assert canvas.commits == [len(step.chosen) for step in wanted.passes]
        assert canvas.passes == len(wanted.passes)
        assert canvas.positions == sum(step.end - step.start for step in wanted.passes)
