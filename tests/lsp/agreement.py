"""A scheduler against its rule in the simulation: commits, passes and cache slots, under every option of the loop."""

from __future__ import annotations

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import lsp
from lsp_kernels import Vocabulary
from tests.lsp.recorder import commits, scripted
from tests.lsp.simulation import Ambiguous, Rule, script, simulate

SIZE, MASK, DELIMITERS, STOPS = 13, 12, (0, 3, 4), (7, 12)  # the mask is a stop too, which it may not become


@st.composite
def options(draw: st.DrawFn, lookahead: bool) -> dict:
    block = draw(st.sampled_from([None, None, 1, 3, 4, 50]))
    cache = draw(st.sampled_from(["prefix", "prefix", "block", "none"] if block else ["prefix", "prefix", "none"]))
    out = {"block_length": block, "cache": cache, "stop_early": draw(st.booleans())}
    if lookahead:
        out["lookahead"] = draw(st.sampled_from([None, None, 1, 2, 5, 0 if block else 3]))
    if cache != "block":
        out["refresh_every"] = draw(st.sampled_from([None, None, 1, 2, 3]))
        out["refresh_scattered"] = draw(st.booleans())
    return out


def check_agreement(scheduler: lsp.Scheduler, data: st.DataObject, rule: Rule | None = None) -> None:
    """Decodes random prompts under random options, and compares with the simulation of `rule`, pass by pass.

    Also the provenance of every cache slot after every pass: which pass wrote it, and from which token.
    """
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
                rows,
                prompt,
                new,
                scheduler,
                mask=MASK,
                shifted=shifted,
                stops=STOPS,
                delimiters=DELIMITERS,
                rule=rule,
                **chosen,
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
        assert commits(canvas) == [len(step.chosen) for step in wanted.passes]
        assert canvas.passes == len(wanted.passes)
        assert canvas.positions == sum(step.end for step in wanted.passes)  # the scripted model sees whole sequences
