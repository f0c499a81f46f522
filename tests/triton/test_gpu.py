"""The same promises on a real GPU, where there is one: ``pytest -m gpu``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lsp_kernels
from lsp_kernels import (
    Commit,
    PrefixRule,
    TokenStats,
    Vocabulary,
    Workspace,
    commit_prefix,
    reference,
    suffix_attention,
    warmup_attention,
    warmup_commit,
)
from tests.attention_cases import AttentionCase, assert_same_bits, attention_cases, check_attention, make_case
from tests.strategies import CommitCase, cases
from tests.support import check_commit, check_select, check_stats, examples, same

pytestmark = pytest.mark.gpu


class OnGpu:
    """The public operations with tensors moved to the GPU and back, by views that keep the strides."""

    def __getattr__(self, name: str) -> Any:
        def call(*tensors: torch.Tensor, **arguments: Any) -> Any:
            out = getattr(lsp_kernels, name)(*map(move, tensors), **{k: move(v) for k, v in arguments.items()})
            kind = {"token_stats": TokenStats, "commit_prefix": Commit}.get(name, lambda *parts: parts)
            return kind(*(tensor.cpu() for tensor in out))

        return call


def move(value: Any) -> Any:
    """To the GPU: the whole storage of a tensor, so that its strides and what lies around it come along."""
    if isinstance(value, Vocabulary):
        return value.to("cuda")
    if not isinstance(value, torch.Tensor):
        return value
    whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).cuda()
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


@examples(1000)
@given(case=cases())
def test_commit_agrees_with_the_enumeration_of_thresholds(case: CommitCase) -> None:
    check_commit(OnGpu(), case)


@examples(300)
@given(case=cases(), strided=st.booleans(), shift=st.sampled_from([0.0, 2.0]))
def test_select_agrees_with_the_enumeration_of_thresholds(case: CommitCase, strided: bool, shift: float) -> None:
    check_select(OnGpu(), case, strided, shift)


@examples(300)
@given(case=cases(most=10))
def test_stats_agree_with_the_definition(case: CommitCase) -> None:
    check_stats(OnGpu(), case)


@dataclasses.dataclass
class Step:
    """One call as a decoder makes it."""

    logits: torch.Tensor
    rule: PrefixRule
    vocabulary: Vocabulary

    def run(self, workspace: Workspace | None = None) -> Commit:
        return commit_prefix(self.logits, rule=self.rule, vocabulary=self.vocabulary, workspace=workspace)

    def check(self, commit: Commit) -> None:
        expected = reference.commit_prefix(self.logits, rule=self.rule, vocabulary=self.vocabulary)
        for got, wanted in zip(commit, expected, strict=True):
            same(got, wanted)


@pytest.fixture
def step() -> Step:
    vocabulary = Vocabulary(126464, delimiters=range(0, 126464, 50), stops=[3], suppress=[126336], device="cuda")
    return Step(torch.randn(2, 64, 126464, device="cuda", dtype=torch.bfloat16), PrefixRule(), vocabulary)


@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
def test_a_captured_graph_replays_on_new_logits(step: Step, shift: int) -> None:
    workspace = Workspace()
    warmup_commit(step.logits, rule=step.rule, vocabulary=step.vocabulary)
    step.logits = step.logits.new_zeros(step.logits.numel() + shift)[shift:].view_as(step.logits)
    step.run(workspace)  # grows the workspace, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # on a stream of its own
        commit = step.run(workspace)
    for seed in range(3):
        step.logits.copy_(torch.randn(step.logits.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        eager = step.run(workspace)
        torch.cuda.synchronize()
        step.check(commit)
        step.check(eager)


def test_two_streams_with_one_workspace(step: Step) -> None:
    streams, workspace = [torch.cuda.Stream() for _ in range(2)], Workspace()
    results = []
    torch.cuda.synchronize()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(step.run(workspace))
    torch.cuda.synchronize()
    for commit in results:
        step.check(commit)


def launches(run: Callable[[], object]) -> list[str]:
    """Names of everything that a call starts on the GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def test_nothing_but_the_kernel_is_launched(step: Step) -> None:
    workspace = Workspace()
    step.run(workspace)
    assert launches(lambda: step.run(workspace)) == ["commit_kernel"]


def attention_on_gpu(*tensors: torch.Tensor | None, **arguments: Any) -> torch.Tensor:
    """suffix_attention with tensors moved to the GPU, and output and caches back."""
    moved = [move(tensor) for tensor in tensors]
    out = suffix_attention(*moved, **arguments)
    for here, there in zip(tensors[3:5], moved[3:5], strict=True):
        here.copy_(there)
    return out.cpu()


@examples(500)
@given(case=attention_cases(longest_prefix=2000, longest_suffix=300))
def test_attention_is_as_exact_as_torch_and_the_cache_is_right_to_the_bit(case: AttentionCase) -> None:
    check_attention(attention_on_gpu, case, factor=2.0)


@pytest.fixture
def long_prefixes() -> AttentionCase:
    """So few rows and so many keys that they are shared between programs."""
    case = make_case([16, 9], [8000, 3000], [5, 0], heads=(28, 4), size=128, dtype=torch.bfloat16)
    return AttentionCase(*(move(getattr(case, field.name)) for field in dataclasses.fields(case)))


def test_attention_gives_the_same_bits_every_time(long_prefixes: AttentionCase) -> None:
    workspace = Workspace()
    first = long_prefixes.with_fresh_cache().run(suffix_attention, workspace=workspace)
    assert all(room.partials.numel() > 0 for room in workspace.rooms())
    for _ in range(50):
        assert_same_bits(long_prefixes.with_fresh_cache().run(suffix_attention, workspace=workspace), first)
    assert not any(room.tickets.any() for room in workspace.rooms())


def test_a_captured_attention_replays_on_a_longer_prefix(long_prefixes: AttentionCase) -> None:
    case, workspace = long_prefixes, Workspace()
    case.append_lens.zero_()
    case.k_cache.nan_to_num_()
    case.v_cache.nan_to_num_()
    case.run(lambda *tensors, **_: warmup_attention(*tensors))
    case.run(suffix_attention, workspace=workspace)  # grows the workspace, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = case.run(suffix_attention, workspace=workspace)
    for prefix in (0, 100, 5000):
        case.prefix_lens.fill_(prefix)
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out, case.run(reference.suffix_attention), rtol=0.02, atol=0.02)


def test_nothing_but_the_attention_kernel_is_launched(long_prefixes: AttentionCase) -> None:
    workspace = Workspace()
    long_prefixes.run(suffix_attention, workspace=workspace)
    assert launches(lambda: long_prefixes.run(suffix_attention, workspace=workspace)) == ["attention_kernel"]
