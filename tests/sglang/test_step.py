"""The steps on SGLang's own `DllmAlgorithm` and `DllmConfig`, and the fused ones against SGLang's formulas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from tests.support import examples

pytestmark = pytest.mark.sglang

MASK, SIZE, BLOCK = 60, 64, 8


def algorithm(name: str, fdfo: bool = False, **settings: Any) -> Any:
    """By the name, as the engine makes it; the plug-in is loaded as the engine loads it."""
    from sglang.srt.dllm.algorithm import get_algorithm
    from sglang.srt.dllm.config import DllmConfig
    from sglang.srt.plugins import load_plugins

    load_plugins()
    return get_algorithm(DllmConfig(name, settings, BLOCK, MASK, 8, first_done_first_out_mode=fdfo))


def batch(ids: Tensor, prompt: Tensor | None) -> SimpleNamespace:
    """What a step reads of a `ForwardBatch`."""
    return SimpleNamespace(batch_size=len(ids), input_ids=ids.clone().flatten(), dllm_prompt_mask=prompt)


def run(found: Any, ids: Tensor, prompt: Tensor | None, passes: list[Tensor]) -> list[tuple[list[int], list[bool]]]:
    """The ids and what is done after each pass; states go from one pass to the next."""
    forward = batch(ids, prompt)
    states, out = found.init_step_state(forward), []
    for logits in passes:
        done = found.step(forward, logits.clone(), states)
        out.append((forward.input_ids.tolist(), done))
    return out


@st.composite
def runs(draw: st.DrawFn) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Blocks with a prompt on the left, some tokens and masks, and the logits of a few passes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    blocks = draw(st.integers(1, 4))
    ids = torch.randint(0, MASK, (blocks, BLOCK), generator=generator)
    masked = torch.rand(blocks, BLOCK, generator=generator) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    given_ = torch.arange(BLOCK) < torch.randint(0, BLOCK, (blocks, 1), generator=generator)
    literal = draw(st.booleans())  # a prompt that holds the id of the mask
    ids = torch.where(masked & (~given_ if not literal else torch.ones_like(masked)), MASK, ids)
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    scale = draw(st.sampled_from([1.0, 4.0, 12.0]))
    logits = [scale * torch.randn(blocks * BLOCK, SIZE, generator=generator) for _ in range(6)]
    return ids, given_ if literal else None, [rows.to(dtype) for rows in logits]


def close_call(passes: list[Tensor], *thresholds: float) -> bool:
    """Whether rounding could decide: a confidence beside a threshold, or two of a block beside each other."""
    for logits in passes:
        p = logits.double().softmax(-1).amax(-1)
        if logits.dtype != torch.float32:  # then equal ones are equal in both
            ends = (p * (1 + 1e-6)).to(logits.dtype), (p * (1 - 1e-6)).to(logits.dtype)
            if not torch.equal(*ends):
                return True
            continue
        near = torch.cat([p.view(-1, BLOCK).sort(1).values.diff(dim=1).flatten(), *((p - t).abs() for t in thresholds)])
        if bool((near < 1e-6).any()):
            return True
    return False


@examples(60)
@given(case=runs(), threshold=st.sampled_from([0.5, 0.95]), fdfo=st.booleans())
def test_low_confidence_gives_the_same_tokens(
    case: tuple[Tensor, Tensor | None, list[Tensor]], threshold: float, fdfo: bool
) -> None:
    theirs, ours = (algorithm(name, fdfo, threshold=threshold) for name in ("LowConfidence", "FusedLowConfidence"))
    assume(not close_call(case[2], threshold))
    assert run(ours, *case) == run(theirs, *case)


@examples(100)
@given(
    case=runs(),
    threshold=st.sampled_from([0.5, 0.9]),
    edit_threshold=st.sampled_from([0, 0.6]),
    edits=st.integers(0, 3),
    penalty=st.sampled_from([0, 1.5]),
    fdfo=st.booleans(),
    vectorized=st.booleans(),
)
def test_joint_threshold_gives_the_same_tokens(
    case: tuple[Tensor, Tensor | None, list[Tensor]],
    threshold: float,
    edit_threshold: float,
    edits: int,
    penalty: float,
    fdfo: bool,
    vectorized: bool,
) -> None:
    settings = {
        "threshold": threshold,
        "edit_threshold": edit_threshold,
        "max_post_edit_steps": edits,
        "penalty_lambda": penalty,
        "vectorized_decoding": vectorized,
    }
    theirs, ours = (algorithm(name, fdfo, **settings) for name in ("JointThreshold", "FusedJointThreshold"))
    assert ours.max_steps(BLOCK) == theirs.max_steps(BLOCK)
    assume(not close_call(case[2], threshold, edit_threshold))
    assert run(ours, *case) == run(theirs, *case)


@examples(60)
@given(case=runs(), stuck=st.sampled_from(["first", "best"]))
def test_a_block_is_done_in_the_pass_after_its_last_mask(
    case: tuple[Tensor, Tensor | None, list[Tensor]], stuck: str
) -> None:
    found = algorithm("LongestStablePrefix", rule={"floor": 2.0}, stuck=stuck)
    ids, prompt, _ = case
    open_ = (ids == MASK) & ~(torch.zeros_like(ids, dtype=torch.bool) if prompt is None else prompt)
    before = ids.clone()
    forward = batch(ids, prompt)
    states = found.init_step_state(forward)
    for turn in range(found.max_steps(BLOCK)):
        logits = 3 * torch.randn(ids.numel(), SIZE, generator=torch.Generator().manual_seed(turn))
        done = found.step(forward, logits, states)
        assert done == (~open_.any(1)).tolist()
        after = forward.input_ids.view(before.shape)
        assert torch.equal(after[~open_], before[~open_])  # what is committed is final
        assert ((after != MASK) & open_).any(1).tolist() == open_.any(1).tolist()  # and every pass commits
        before, open_ = after.clone(), open_ & (after == MASK)
    assert all(done)


def test_the_engine_refuses_what_nobody_reads() -> None:
    with pytest.raises(ValueError, match=r"Invalid algorithm config: .* got 'threshold'"):
        algorithm("LongestStablePrefix", threshold=0.9)
    with pytest.raises(ValueError, match="Invalid stream: expected a server with --dllm-fdfo"):
        algorithm("LongestStablePrefix", stream=True)
    assert algorithm("LongestStablePrefix", fdfo=True, stream=True).settings.stream
