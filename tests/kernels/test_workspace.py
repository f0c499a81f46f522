"""A workspace grows, keeps streams and captures apart, and is ignored where no GPU needs one."""

from __future__ import annotations

import pytest
import torch

from lsp_kernels import PrefixRule, Workspace, commit_prefix, suffix_attention, token_stats, warmup_commit
from lsp_kernels import workspace as module
from tests.attention_cases import assert_same_bits, make_case

CPU = torch.device("cpu")


class Gpu:
    """Says which stream is current and whether it captures, in place of torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.capturing = 0, False
        monkeypatch.setattr(module, "stream_of", lambda _: self.stream)
        monkeypatch.setattr(module, "is_capturing", lambda _: self.capturing)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_it_grows_and_never_shrinks() -> None:
    workspace = Workspace()
    partials, tickets = workspace.reserve(CPU, 10, 2)
    assert not tickets.any()
    again = workspace.reserve(CPU, 5, 1)
    assert again[0] is partials
    assert again[1] is tickets
    assert [t.numel() for t in workspace.reserve(CPU, 5, 4)] == [10, 4]
    assert repr(workspace) == "Workspace(partials=10, tickets=4, device='cpu')"


@pytest.mark.abuse("operators")
def test_another_device_is_refused() -> None:
    workspace = Workspace()
    workspace.reserve(CPU, 1, 1)
    with pytest.raises(ValueError, match="Invalid workspace: expected one on meta, got one on cpu"):
        workspace.reserve(torch.device("meta"), 1, 1)


def addresses(room: module.Room) -> set[int]:
    return {tensor.data_ptr() for tensor in room}


def test_every_stream_has_room_of_its_own(gpu: Gpu) -> None:
    workspace = Workspace()
    first = workspace.reserve(CPU, 10, 2)
    gpu.stream = 1
    second = workspace.reserve(CPU, 10, 2)
    assert not addresses(first) & addresses(second)
    gpu.stream = 0
    assert addresses(workspace.reserve(CPU, 10, 2)) == addresses(first)


def test_captured_calls_share_no_room_with_eager_ones(gpu: Gpu) -> None:
    workspace = Workspace()
    eager = workspace.reserve(CPU, 10, 2)
    gpu.stream, gpu.capturing = 7, True  # torch captures on a stream of its own
    captured = workspace.reserve(CPU, 8, 2)
    assert not addresses(eager) & addresses(captured)
    assert not captured.tickets.any()
    gpu.stream, gpu.capturing = 0, False
    assert addresses(workspace.reserve(CPU, 10, 2)) == addresses(eager)


@pytest.mark.parametrize("needed", [(11, 2), (10, 3)])
def test_a_capture_cannot_grow_it(gpu: Gpu, needed: tuple[int, int]) -> None:
    workspace = Workspace()
    gpu.capturing = True
    with pytest.raises(ValueError, match="expected room for 10 partials and 2 tickets before a capture, got Workspace"):
        workspace.reserve(CPU, 10, 2)
    gpu.capturing = False
    workspace.reserve(CPU, 10, 2)
    gpu.capturing = True
    with pytest.raises(ValueError, match=f"expected room for {needed[0]} partials and {needed[1]} tickets before"):
        workspace.reserve(CPU, *needed)


def test_a_captured_graph_keeps_its_memory_when_the_workspace_grows(gpu: Gpu) -> None:
    workspace = Workspace()
    workspace.reserve(CPU, 10, 2)
    gpu.capturing = True
    captured = addresses(workspace.reserve(CPU, 10, 2))
    gpu.capturing = False
    workspace.reserve(CPU, 100, 20)
    held = set().union(*(addresses(room) for room in workspace.rooms()))
    assert captured <= held


def test_reset_clears_the_tickets_of_an_aborted_launch(gpu: Gpu) -> None:
    workspace = Workspace()
    for stream in range(2):
        gpu.stream = stream
        workspace.reserve(CPU, 10, 2)
    workspace.reserve(CPU, 10, 5)  # the room for captures is outgrown
    for room in workspace.rooms():
        room.tickets.fill_(3)
    workspace.reset()
    assert not any(room.tickets.any() for room in workspace.rooms())
    assert len(list(workspace.rooms())) == 4


def test_cpu_tensors_ignore_it() -> None:
    workspace, logits = Workspace(), torch.randn(4, 50)
    commit_prefix(logits, rule=PrefixRule(snap=False), workspace=workspace)
    token_stats(logits, workspace=workspace)
    warmup_commit(logits, rule=PrefixRule(snap=False))
    assert list(workspace.rooms()) == []


def test_compiled_code_ignores_it_and_is_one_graph() -> None:
    workspace, case, rule = Workspace(), make_case([5, 3], [9, 4], None, heads=(4, 2)), PrefixRule(snap=False)

    def step(q: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        case.q = q
        out = case.run(suffix_attention, workspace=workspace)
        stats = token_stats(logits, workspace=workspace)
        return out, stats.tokens, commit_prefix(logits, rule=rule, workspace=workspace).lengths

    operands = case.q, torch.randn(4, 50)
    for got, expected in zip(torch.compile(step, fullgraph=True)(*operands), step(*operands), strict=True):
        assert torch.equal(got, expected)
    with pytest.MonkeyPatch.context() as patch:  # as on a GPU, up to the question whether code is being compiled
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert module.reserve(workspace, torch.device("cuda"), lambda: pytest.fail("asked")) == (None, None)
    assert_same_bits(torch.compile(step)(*operands)[0], step(*operands)[0])
    assert list(workspace.rooms()) == []
