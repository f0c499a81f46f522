"""A scheduler against its rule in the simulation: commits, passes and cache slots, under every option of the loop.

Prompts are simulated one by one; the loop decodes them in batches of any size.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import lsp
from lsp_kernels import Vocabulary
from tests.lsp.recorder import Recorder, commits, scripted
from tests.lsp.simulation import Ambiguous, Rule, Simulation, script, seated, simulate

SIZE, MASK, DELIMITERS, STOPS = 13, 12, (0, 3, 4), (7, 12)  # the mask is a stop too, which it may not become


@st.composite
def options(draw: st.DrawFn, lookahead: bool) -> dict:
    block = draw(st.sampled_from([None, None, 1, 3, 4, 50]))
    cache = draw(st.sampled_from(["prefix", "prefix", "block", "none"] if block else ["prefix", "prefix", "none"]))
    out = {"block_length": block, "blocks": "fixed", "cache": cache, "stop_early": draw(st.booleans())}
    if block:
        moving = ["sliding", "growing"] if cache != "block" else []
        out["blocks"] = draw(st.sampled_from(["fixed", "fixed", "delimiter", *moving]))
        out["delimiter_confidence"] = draw(st.sampled_from([0.1, 0.3, 0.7]))
    if lookahead:
        out["lookahead"] = draw(st.sampled_from([None, None, 1, 2, 5, 0 if block else 3]))
    out["recompute"] = draw(st.sampled_from([0, 0, 1, 3, 20]))
    if cache != "block":
        out["refresh_every"] = draw(st.sampled_from([None, None, 1, 2, 3]))
        out["refresh_scattered"] = draw(st.booleans())
    return out


def takes_lookahead(scheduler: lsp.Scheduler) -> bool:
    try:
        scheduler.check(lsp.Options(lookahead=1))
    except ValueError:
        return False
    return True


def check_agreement(scheduler: lsp.Scheduler, data: st.DataObject, rule: Rule | None = None) -> None:
    """Decodes random prompts under random options, and compares with the simulation of `rule`, pass by pass.

    Also the provenance of every cache slot after every pass: which pass wrote it, and from which token.
    """
    shifted = data.draw(st.booleans(), "shifted")
    chosen = data.draw(options(takes_lookahead(scheduler)), "options")
    new = data.draw(st.integers(0, 11), "new")
    lengths = data.draw(st.lists(st.integers(int(shifted), 6), min_size=1, max_size=5), "prompts")
    batch_size = data.draw(st.sampled_from([None, 1, 2, 3, 9]), "batch size")
    seed = data.draw(st.integers(0, 10**6), "seed")
    rows = script(seed, SIZE, MASK, ties=data.draw(st.booleans(), "ties"))
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, MASK, size=n).tolist() for n in lengths]
    if data.draw(st.booleans(), "holes"):
        longer = [[*prompt, *rng.integers(0, MASK, size=rng.integers(0, 6)).tolist()] for prompt in prompts]
        prompts = [with_holes(prompt, int(shifted), rng) for prompt in longer]
    seeds = rng.integers(-(2**63), 2**63 - 1, size=len(prompts)).tolist()
    chosen["temperature"] = data.draw(st.sampled_from([0.0, 0.0, 0.4, 1.0]), "temperature")
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
                seed=own,
                **chosen,
            )
            for prompt, own in zip(prompts, seeds, strict=True)
        ]
    except Ambiguous:
        assume(False)

    model = scripted(rows, SIZE, MASK, shifted=shifted)
    vocabulary = Vocabulary(SIZE, DELIMITERS, STOPS, suppress=[MASK])
    places = seated([len(each.passes) for each in expected], min(batch_size or len(prompts), len(prompts)))
    for progress in lsp.decode(model, prompts, new, scheduler, vocabulary, lsp.Options(**chosen), seeds, batch_size):
        assert progress.passes == len(model.passes)
        assert set(progress.in_pass) == {
            b for b, mine in enumerate(places) if progress.passes - 1 in [at for at, _ in mine]
        }
    for canvas, wanted, mine in zip(progress.canvases, expected, places, strict=True):
        check_passes(model, wanted, mine)
        assert canvas.run.tolist() == wanted.tokens
        assert commits(canvas) == [len(step.chosen) for step in wanted.passes]
        assert canvas.passes == len(wanted.passes)
        assert canvas.positions == sum(step.end for step in wanted.passes)  # the scripted model sees whole sequences
    used = set(chain(*places))
    assert progress.passes == max((at + 1 for at, _ in used), default=0)
    for at, segments in enumerate(model.passes):
        empty = [segment for seat, segment in enumerate(segments) if (at, seat) not in used]
        assert not any(segment.tokens or segment.append for segment in empty), f"pass {at}"


def with_holes(prompt: list[int], first: int, rng: np.random.Generator) -> list[int]:
    """The prompt with masks in it from position `first` on: runs of any lengths, at either end too."""
    share = rng.choice([0.2, 0.5, 0.9])
    open_, out = bool(rng.random() < share), []
    for position, token in enumerate(prompt):
        open_ = open_ if rng.random() < 0.5 else bool(rng.random() < share)
        out.append(MASK if open_ and position >= first else token)
    return out


def check_passes(model: Recorder, wanted: Simulation, mine: list[tuple[int, int]]) -> None:
    """The passes that the loop made over a sequence, at these places, are those of its simulation."""
    for index, ((at, seat), step) in enumerate(zip(mine, wanted.passes, strict=True)):
        got, begin = model.passes[at][seat], mine[0][0]
        slots = {slot: (by - begin, token) for slot, (by, token) in model.slots[at][seat].items()}
        assert got.positions == step.positions, f"pass {index}"
        assert (got.append, got.held) == (step.append, step.start), f"pass {index}"
        assert slots == wanted.slots[index], f"pass {index}"
