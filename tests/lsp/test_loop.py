"""The loop on transformers and on scripted models: exact where it says so, and each sequence as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lsp
from lsp.models import Transformer
from lsp_kernels import Vocabulary
from tests.lsp import plain
from tests.lsp.checkpoints import DECODED, Case, ids_of
from tests.lsp.recorder import SCHEDULERS, Recorder, commits, last
from tests.lsp.simulation import seated, simulate

CASES = {name: make() for name, make in DECODED.items()}
MASK, DELIMITERS = 7, range(0, 200, 5)
CACHES = {
    "prefix": {},
    "refresh": {"refresh_every": 3},
    "refresh scattered": {"refresh_scattered": True},
    "blocks": {"block_length": 4, "cache": "prefix"},
    "block": {"block_length": 4, "cache": "block"},
    "lookahead": {"block_length": 4, "lookahead": 3},
    "window": {"lookahead": 5},
    "noise": {"temperature": 0.7},
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def single(folder: Path) -> Transformer:
    return lsp.load(folder, dtype=torch.float32)


def vocabulary(case: Case, stops: Sequence[int] = (5,)) -> Vocabulary:
    return Vocabulary(case.vocab_size, DELIMITERS, stops)


def run(model: object, prompts: list[list[int]], new: int, scheduler: object, known: Vocabulary, **options: object):
    """The recorder of a whole run, and where it ended."""
    loop = {name: options.pop(name, None) for name in ("seeds", "batch_size")}
    recorder = Recorder(model)
    return recorder, last(lsp.decode(recorder, prompts, new, scheduler, known, lsp.Options(**options), **loop))


def close(got: Tensor, expected: Tensor, tolerance: float) -> None:
    """The tolerance is for logits that spread as those of trained models do, by about 10."""
    spread = max(1.0, float(expected.std()) / 10) if expected.numel() > 1 else 1.0
    torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=tolerance * spread)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_refresh_in_every_pass_is_plain_uncached_decoding(case: Case, exact: Transformer, name: str) -> None:
    shifted, prompt = case.shifted, ids_of(case, 9, seed=3)
    wanted = simulate(
        lambda ids: case.logits(ids).tolist(),
        prompt,
        14,
        SCHEDULERS[name],
        mask=MASK,
        shifted=shifted,
        stops=[5],
        delimiters=DELIMITERS,
        refresh_every=1,
    )
    for options in ({"refresh_every": 1}, {"cache": "none"}):
        recorder, state = run(exact, [prompt], 14, SCHEDULERS[name], vocabulary(case), **options)
        assert state.canvases[0].run.tolist() == wanted.tokens
        assert commits(state.canvases[0]) == [len(step.chosen) for step in wanted.passes]
        assert recorder.cache.capacity == 0
        for (segment,) in recorder.passes:
            close(segment.logits, case.logits(segment.tokens), 1e-9)
    assert len(set(wanted.tokens)) > 5


@pytest.mark.parametrize("seats", [4, 2], ids=["together", "two at a time"])
@pytest.mark.parametrize("options", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("name", ["guarded", "threshold", "islands"])
def test_a_ragged_batch_is_each_prompt_alone(
    case: Case, exact: Transformer, name: str, options: dict, seats: int
) -> None:
    prompts = [ids_of(case, n, seed=n) for n in (9, 1, 17, 4)]
    known, seeds = vocabulary(case, stops=range(100, 120)), [5, 6, 7, 5]
    together, state = run(exact, prompts, 12, SCHEDULERS[name], known, seeds=seeds, batch_size=seats, **options)
    places = seated([canvas.passes for canvas in state.canvases], seats)
    for b, prompt in enumerate(prompts):
        alone, end = run(exact, [prompt], 12, SCHEDULERS[name], known, seeds=seeds[b : b + 1], **options)
        assert state.canvases[b].run.tolist() == end.canvases[0].run.tolist()
        assert commits(state.canvases[b]) == commits(end.canvases[0])
        assert (state.canvases[b].passes, state.canvases[b].positions) == (end.passes, end.canvases[0].positions)
        for (at, seat), (there,) in zip(places[b], alone.passes, strict=True):
            here = together.passes[at][seat]
            assert here.tokens == there.tokens
            close(here.logits, there.logits, 1e-9)
    tokens = [len(segment.tokens) for segments in together.passes for segment in segments]
    assert np.count_nonzero(tokens) == sum(map(len, places))  # no pass over a sequence that is finished
    assert len({token for canvas in state.canvases for token in canvas.run.tolist()}) > 10


@pytest.mark.parametrize("options", [{"cache": "none"}, {}], ids=["none", "prefix"])
def test_in_float32_a_ragged_batch_differs_by_rounding_alone(case: Case, single: Transformer, options: dict) -> None:
    prompts = [ids_of(case, n, seed=n) for n in (9, 1, 17, 4)]
    together, _ = run(single, prompts, 12, lsp.Full(), vocabulary(case), **options)
    shift, agreed = int(single.config.shifted), 0
    for b, prompt in enumerate(prompts):
        alone, _ = run(single, [prompt], 12, lsp.Full(), vocabulary(case), **options)
        for here, (there,) in zip(together.passes, alone.passes, strict=False):
            if here[b].tokens != there.tokens:
                break
            close(here[b].logits, there.logits, 1e-4)
            agreed += 1
            if options:
                close(here[b].logits, case.logits(here[b].tokens), 1e-4)
        for before, after in pairwise(together.passes):
            check_tokens(before[b], after[b], shift)
    assert agreed > 30


def check_tokens(before: object, after: object, shift: int) -> None:
    """What a pass committed is the best token wherever the margin exceeds the rounding."""
    known = dict(zip(after.positions, after.tokens, strict=True))
    for row, (position, token) in enumerate(zip(before.positions, before.tokens, strict=True)):
        if token == MASK and known.get(position, MASK) != MASK:
            logits = before.logits[row - shift].clone()
            logits[MASK] = -torch.inf
            best = logits.topk(2)
            assert known[position] == best.indices[0] or best.values[0] - best.values[1] <= 1e-4


class Frozen:
    """LLaDA written out once more, with K and V that are kept from the pass in which they were the front."""

    def __init__(self, case: Case) -> None:
        tensors = case.tensors.items()
        self.w = {name.removeprefix("model.transformer."): t.double() for name, t in tensors}
        self.config = case.config
        self.kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(case.config["n_layers"])]

    def logits(self, ids: list[int], start: int, append: int) -> Tensor:
        eps, heads = self.config["rms_norm_eps"], self.config["n_heads"]
        size = self.config["d_model"] // heads
        cos, sin = plain.angles(start + len(ids), size, self.config["rope_theta"], torch.float64)
        x = self.w["wte.weight"][ids]
        for i, kept in enumerate(self.kept):
            w = {name.removeprefix(f"blocks.{i}."): t for name, t in self.w.items()}
            del kept[start:]
            y = plain.norm(x, w["attn_norm.weight"], eps)
            q, k, v = (plain.linear(y, w[f"{name}_proj.weight"]) for name in "qkv")
            rows = [*kept, *zip(k, v, strict=True)]
            k, v = (torch.stack([row[j] for row in rows]) for j in (0, 1))
            kept += rows[start : start + append]
            out = []
            for h in range(heads):
                mine = slice(h * size, (h + 1) * size)
                a = q[:, mine] * cos[start:] + plain.half_turn(q[:, mine]) * sin[start:]
                b = k[:, mine] * cos + plain.half_turn(k[:, mine]) * sin
                out.append((a @ b.T / size**0.5).softmax(-1) @ v[:, mine])
            x = x + plain.linear(torch.cat(out, 1), w["attn_out.weight"])
            y = plain.norm(x, w["ff_norm.weight"], eps)
            gate, up = plain.linear(y, w["ff_proj.weight"]), plain.linear(y, w["up_proj.weight"])
            x = x + plain.linear(gate * torch.sigmoid(gate) * up, w["ff_out.weight"])
        return plain.linear(plain.norm(x, self.w["ln_f.weight"], eps), self.w["ff_out.weight"])


@pytest.mark.parametrize("name", ["guarded", "topk", "islands"])
@pytest.mark.parametrize("options", [{}, {"refresh_every": 4}, {"block_length": 4, "cache": "block"}], ids=str)
def test_cached_passes_see_the_k_and_v_of_the_committed_tokens(tmp_path: Path, name: str, options: dict) -> None:
    """From the pass in which they were the front: neither those of the masks before, nor of any later pass."""
    case = CASES["llada"]
    model = lsp.load(case.save(tmp_path), dtype=torch.float64)
    recorder, _ = run(model, [ids_of(case, 6)], 14, SCHEDULERS[name], vocabulary(case, ()), **options)
    written_out, differences = Frozen(case), []
    for (segment,) in recorder.passes:
        expected = written_out.logits(segment.tokens, segment.held, segment.append)
        close(segment.logits, expected, 1e-9)
    for (segment,), slots in zip(recorder.passes, recorder.slots, strict=True):
        whole = [token for _, token in sorted(slots[0].items())]
        tokens = [token for _, token in whole[: segment.held]] + segment.tokens
        differences.append((segment.logits - case.logits(tokens)[segment.held :]).abs().max())
    assert max(differences) > 0.1  # or the cache would not have been seen at work


@pytest.mark.parametrize("scheduler", [lsp.FixedPrefix(2), lsp.TopK(3)], ids=["prefix", "scattered"])
def test_frozen_slots_stay_as_they_were_written(case: Case, exact: Transformer, scheduler: object) -> None:
    recorder = Recorder(exact)
    prompts, held = [ids_of(case, n, seed=n) for n in (6, 3)], None
    for state in lsp.decode(recorder, prompts, 20, scheduler, vocabulary(case, ()), lsp.Options()):
        lengths = recorder.cache.lengths.tolist()
        assert lengths == [canvas.frozen for canvas in state.canvases]
        if held is not None:
            for (k, v), (k_now, v_now) in zip(
                held[0], zip(recorder.cache.k, recorder.cache.v, strict=True), strict=True
            ):
                for b, n in enumerate(held[1]):
                    assert torch.equal(k[b, :, :n], k_now[b, :, :n])
                    assert torch.equal(v[b, :, :n], v_now[b, :, :n])
        held = [(k.clone(), v.clone()) for k, v in zip(recorder.cache.k, recorder.cache.v, strict=True)], lengths
    assert max(lengths) > 6


def test_an_interrupted_pass_leaves_model_and_cache_usable(case: Case, exact: Transformer) -> None:
    prompts, known = [ids_of(case, 5), ids_of(case, 8, seed=1)], vocabulary(case, ())
    undisturbed, state = run(exact, prompts, 10, SCHEDULERS["fixed"], known)
    recorder, calls = Recorder(exact), []

    def interrupt(*_: object) -> None:
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt

    hook = exact.blocks[1].register_forward_pre_hook(interrupt)
    loop = lsp.decode(recorder, prompts, 10, SCHEDULERS["fixed"], known)
    progress = [next(loop) for _ in range(3)][-1]
    with pytest.raises(KeyboardInterrupt):
        next(loop)
    hook.remove()
    assert progress.passes == 2
    for canvas, done in zip(progress.canvases, state.canvases, strict=True):
        assert canvas.run.tolist() == done.run.tolist()[:4]

    third = undisturbed.passes[2]  # the interrupted one, once more on the same cache
    assert recorder.cache.lengths.tolist() == [segment.held for segment in third]
    tokens, positions = (
        torch.tensor(list(chain(*(getattr(segment, name) for segment in third)))) for name in ("tokens", "positions")
    )
    borders = torch.tensor([0, *np.cumsum([len(segment.tokens) for segment in third])], dtype=torch.int32)
    hidden = exact(tokens, positions, borders, recorder.cache, [segment.append for segment in third])
    close(exact.lm_head(hidden), torch.cat([segment.logits for segment in third]), 1e-9)
    _, again = run(exact, prompts, 10, SCHEDULERS["fixed"], known)
    assert [c.run.tolist() for c in again.canvases] == [c.run.tolist() for c in state.canvases]


def test_little_noise_changes_nothing(case: Case, exact: Transformer) -> None:
    prompt = ids_of(case, 9)
    greedy, cold = (
        run(exact, [prompt], 10, lsp.Full(), vocabulary(case), temperature=t)[1].canvases[0] for t in (0.0, 1e-9)
    )
    assert greedy.run.tolist() == cold.run.tolist()
