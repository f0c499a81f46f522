"""The same promises through the public functions on a GPU: the real one, or virtual ones where there is none.

``pytest -m gpu`` runs these.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lsp_kernels
from lsp_kernels import (
    Commit,
    Noise,
    PrefixRule,
    Vocabulary,
    Workspace,
    add_norm,
    commit_prefix,
    linear_commit_prefix,
    linear_token_stats,
    reference,
    rotate_,
    silu_mul,
    suffix_attention,
    token_stats,
    warmup_attention,
    warmup_block,
    warmup_commit,
    warmup_head,
)
from tests.attention_cases import AttentionCase, assert_same_bits, attention_cases, check_attention, make_case
from tests.gpus import IS_REAL, Moved, RealGpu, VirtualGpu, times, to_gpu
from tests.head_cases import ByIdentity, factors
from tests.strategies import CommitCase, cases
from tests.support import check_commit, check_noisy_commit, check_noisy_stats, check_select, check_stats, same

commit = pytest.mark.gpu("sm_90")
attention = pytest.mark.gpu("sm_80", attention=True)
Gpu = RealGpu | VirtualGpu


ON_GPU = Moved(lsp_kernels)
PREFIX, SUFFIX = (2000, 300) if IS_REAL else (300, 20)  # the longest


@commit
@times(1000, virtual=8)
@given(case=cases())
def test_commit_agrees_with_the_enumeration_of_thresholds(gpu: Gpu, case: CommitCase) -> None:
    check_commit(ON_GPU, case)


@commit
@times(300, virtual=8)
@given(case=cases(), strided=st.booleans(), shift=st.sampled_from([0.0, 2.0]))
def test_select_agrees_with_the_enumeration_of_thresholds(
    gpu: Gpu, case: CommitCase, strided: bool, shift: float
) -> None:
    check_select(ON_GPU, case, strided, shift)


@commit
@times(300, virtual=5)
@given(case=cases(most=10))
def test_stats_agree_with_the_definition(gpu: Gpu, case: CommitCase) -> None:
    check_stats(ON_GPU, case)


@commit
@times(300, virtual=3)
@given(case=cases(most=6), seed=st.integers(0, 2**32 - 1))
def test_noise_entropy_and_log_odds_agree_with_the_definition(gpu: Gpu, case: CommitCase, seed: int) -> None:
    noise, draws = case.draws(seed)
    check_noisy_stats(ON_GPU, case, noise, draws, id_offset=4 * (seed % 3))
    check_noisy_commit(ON_GPU, case, noise, draws)
    check_stats(ON_GPU, case, entropy=True)


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
def step(gpu: Gpu) -> Step:
    length, size = gpu.sized((64, 126464), virtual=(6, 10304))
    hidden = size - 128
    vocabulary = Vocabulary(size, delimiters=range(0, size, 50), stops=[3], suppress=[hidden], device="cuda")
    return Step(torch.randn(2, length, size, device="cuda", dtype=torch.bfloat16), PrefixRule(), vocabulary)


@commit
@pytest.mark.real_gpu
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


@commit
def test_two_streams_with_one_workspace(gpu: Gpu, step: Step) -> None:
    streams, workspace = [torch.cuda.Stream() for _ in range(2)], Workspace()
    results = []
    torch.cuda.synchronize()
    for _ in range(gpu.sized(20, virtual=2)):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(step.run(workspace))
    torch.cuda.synchronize()
    for commit in results:
        step.check(commit)


@commit
def test_nothing_but_the_kernel_is_launched(gpu: Gpu, step: Step) -> None:
    workspace = Workspace()
    step.run(workspace)
    assert gpu.launched(lambda: step.run(workspace)) == ["commit_kernel"]
    few = step.logits[:1, :1]
    noise = Noise(torch.full((1, 1), 0.7, device="cuda"), seeds=1, positions=0)
    options = {"vocabulary": step.vocabulary, "noise": noise, "workspace": workspace}
    for _ in range(2):  # the first may grow the workspace
        noisy = gpu.launched(lambda: commit_prefix(few, rule=step.rule, log_odds=True, **options))
        stats = gpu.launched(lambda: token_stats(few, id_offset=5, entropy=True, **options))
    assert (noisy, stats) == (["commit_kernel"], ["stats_kernel"])


@pytest.mark.gpu(attention=True)
@times(500, virtual=4)
@given(case=attention_cases(longest_prefix=PREFIX, longest_suffix=SUFFIX))
def test_attention_is_as_exact_as_torch_and_the_cache_is_right_to_the_bit(gpu: Gpu, case: AttentionCase) -> None:
    check_attention(ON_GPU.suffix_attention, case, factor=2.0)


@pytest.fixture
def long_prefixes(gpu: Gpu) -> AttentionCase:
    """So few rows and so many keys that they are shared between programs."""
    tokens, prefixes, heads, size = gpu.sized(
        ([16, 9], [8000, 3000], (28, 4), 128), virtual=([5, 1], [600, 90], (7, 1), 64)
    )
    case = make_case(tokens, prefixes, [5, 0], heads=heads, size=size, dtype=torch.bfloat16)
    return AttentionCase(*(to_gpu(getattr(case, field.name)) for field in dataclasses.fields(case)))


@attention
def test_attention_gives_the_same_bits_every_time(gpu: Gpu, long_prefixes: AttentionCase) -> None:
    workspace = Workspace()
    first = long_prefixes.with_fresh_cache().run(suffix_attention, workspace=workspace)
    assert all(room.partials.numel() > 0 for room in workspace.rooms())
    for _ in range(gpu.sized(50, virtual=2)):
        assert_same_bits(long_prefixes.with_fresh_cache().run(suffix_attention, workspace=workspace), first)
    assert not any(room.tickets.any() for room in workspace.rooms())


@attention
@pytest.mark.real_gpu
def test_a_captured_attention_replays_on_other_lengths(long_prefixes: AttentionCase) -> None:
    case, workspace = long_prefixes, Workspace()
    case.append_lens.zero_()
    case.k_cache.nan_to_num_()
    case.v_cache.nan_to_num_()
    case.run(lambda *tensors, **_: warmup_attention(*tensors))
    case.run(suffix_attention, workspace=workspace)  # grows the workspace, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = case.run(suffix_attention, workspace=workspace)
    for prefix, last in ((0, 25), (100, 16), (5000, 20)):  # tokens past the last border are unused
        case.prefix_lens.fill_(prefix)
        case.cu_seqlens[-1] = last
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out, case.run(reference.suffix_attention), rtol=0.02, atol=0.02)


@attention
def test_nothing_but_the_attention_kernel_is_launched(gpu: Gpu, long_prefixes: AttentionCase) -> None:
    workspace = Workspace()
    long_prefixes.run(suffix_attention, workspace=workspace)
    assert gpu.launched(lambda: long_prefixes.run(suffix_attention, workspace=workspace)) == ["attention_kernel"]


head = pytest.mark.gpu("sm_90", attention=True)


@head
@times(300, virtual=3)
@given(case=cases(sizes=(1, 17, 130), most=10, finite=True))
def test_the_head_commits_as_the_enumeration_of_thresholds(gpu: Gpu, case: CommitCase) -> None:
    check_commit(ByIdentity(ON_GPU), case)


@head
def test_nothing_but_a_head_kernel_is_launched(gpu: Gpu) -> None:
    """After a warm-up, with a workspace, and with an offset of the ids."""
    rows, size, ids = gpu.sized((64, 4096, 126464), virtual=(5, 32, 300))
    hidden, weight = (tensor.round().to("cuda") for tensor in factors(rows, size, ids, torch.bfloat16))
    rule, workspace = PrefixRule(snap=False), Workspace()
    warmup_head(hidden, weight, rule=rule)

    def run() -> None:
        commit = linear_commit_prefix(hidden, weight, rule=rule, workspace=workspace)
        stats = linear_token_stats(hidden, weight, id_offset=7, workspace=workspace)
        same((stats.tokens - 7)[commit.tokens >= 0].cpu(), commit.tokens[commit.tokens >= 0].cpu())

    run()
    launched = gpu.launched(lambda: linear_commit_prefix(hidden, weight, rule=rule, workspace=workspace))
    assert launched == ["head_commit_kernel"]
    launched = gpu.launched(lambda: linear_token_stats(hidden, weight, id_offset=7, workspace=workspace))
    assert launched == ["head_stats_kernel"]
    assert not any(room.tickets.any() for room in workspace.rooms())


@head
@pytest.mark.real_gpu
def test_a_captured_head_replays_on_new_hidden_states(gpu: Gpu) -> None:
    hidden, weight = (tensor.to("cuda") for tensor in factors(64, 1024, 20000, torch.bfloat16))
    rule, workspace, counts = PrefixRule(snap=False), Workspace(), torch.tensor([64], dtype=torch.int32, device="cuda")
    warmup_head(hidden, weight, n_active=counts, rule=rule)
    linear_commit_prefix(hidden, weight, n_active=counts, rule=rule, workspace=workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        commit = linear_commit_prefix(hidden, weight, n_active=counts, rule=rule, workspace=workspace)
    for seed, count in enumerate((64, 9, 1)):
        counts.fill_(count)
        hidden.copy_(torch.randn(hidden.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        torch.cuda.synchronize()
        expected = reference.linear_commit_prefix(hidden, weight, n_active=counts, rule=rule)
        torch.testing.assert_close(commit.top1, expected.top1, rtol=1e-4, atol=1e-3)


class BlockCase:
    """Operands of a block's operations on the GPU, and a run of these."""

    def __init__(self, rows: int, size: int) -> None:
        self.x, self.residual, self.gate_up = (torch.randn(rows, size).bfloat16().to("cuda") for _ in range(3))
        self.weight = torch.randn(size).bfloat16().to("cuda")
        self.q, self.k, _ = torch.randn(rows, 8, 64).bfloat16().to("cuda").split([4, 2, 2], dim=1)
        self.norms = {name: torch.randn(64).bfloat16().to("cuda") for name in ("q_norm", "k_norm")}
        self.angles = torch.randn(2, rows, 32).to("cuda").unbind()

    def warm_up(self) -> None:
        warmup_block(self.x, self.weight, self.q, self.k, self.gate_up, **self.norms)

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        rotate_(self.q, self.k, *self.angles, **self.norms, eps=1e-6)
        return add_norm(self.x, self.weight, eps=1e-6, residual=self.residual), silu_mul(self.gate_up)


@pytest.mark.gpu("sm_90")
def test_a_warmup_of_a_block_writes_nothing_and_each_operation_is_one_launch(gpu: Gpu) -> None:
    case = BlockCase(*gpu.sized((64, 4096), virtual=(3, 64)))
    before = {name: tensor.cpu().clone() for name, tensor in vars(case).items() if isinstance(tensor, torch.Tensor)}
    case.warm_up()
    for name, tensor in before.items():
        same(getattr(case, name).cpu(), tensor)
    assert gpu.launched(case.run) == ["rotate_kernel", "add_norm_kernel", "silu_mul_kernel"]


@pytest.mark.gpu
@pytest.mark.real_gpu
def test_a_block_that_was_warmed_up_is_captured_by_its_first_call(gpu: Gpu) -> None:
    case, graph = BlockCase(7, 4000), torch.cuda.CUDAGraph()
    case.warm_up()
    with torch.cuda.graph(graph):
        out, gated = case.run()
    case.x.copy_(torch.randn(case.x.shape))
    expected = reference.add_norm(case.x, case.weight, eps=1e-6, residual=case.residual.clone())
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(gated, reference.silu_mul(case.gate_up), rtol=0.02, atol=0.02)
