"""A workspace grows, keeps its device, and is ignored where no GPU needs one."""

from __future__ import annotations

import pytest
import torch

from lsp_kernels import PrefixRule, Workspace, commit_prefix, token_stats, warmup_commit


def test_it_grows_and_never_shrinks() -> None:
    workspace = Workspace()
    partials, tickets = workspace.reserve(torch.device("cpu"), 10, 2)
    assert not tickets.any()
    again = workspace.reserve(torch.device("cpu"), 5, 1)
    assert again == (partials, tickets)
    assert [t.numel() for t in workspace.reserve(torch.device("cpu"), 5, 4)] == [10, 4]
    assert repr(workspace) == "Workspace(partials=10, tickets=4, device='cpu')"


@pytest.mark.abuse("operators")
def test_another_device_is_refused() -> None:
    workspace = Workspace()
    workspace.reserve(torch.device("cpu"), 1, 1)
    with pytest.raises(ValueError, match="Invalid workspace: expected one on meta, got one on cpu"):
        workspace.reserve(torch.device("meta"), 1, 1)


def test_cpu_tensors_ignore_it() -> None:
    workspace, logits = Workspace(), torch.randn(4, 50)
    commit_prefix(logits, rule=PrefixRule(snap=False), workspace=workspace)
    token_stats(logits, workspace=workspace)
    warmup_commit(logits, rule=PrefixRule(snap=False))
    assert workspace.partials is None
