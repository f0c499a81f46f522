"""The GPU that a test is given: what it counts as a launch, and what it moves."""

from __future__ import annotations

import torch

from lsp_kernels import PrefixRule, Workspace, commit_prefix
from tests.gpus import Moved, gpu_of, to_gpu


def test_what_torch_would_launch_is_counted_beside_the_kernels() -> None:
    logits, rule, workspace = torch.randn(4, 64), PrefixRule(snap=False), Workspace()
    with gpu_of("sm_90") as gpu:
        x = logits.cuda()
        assert gpu.launched(lambda: torch.empty_like(x).view(-1)[3:]) == []
        assert gpu.launched(lambda: x[0].add_(1)) == ["add_"]
        commit_prefix(x, rule=rule, workspace=workspace)
        assert gpu.launched(lambda: commit_prefix(x, rule=rule, workspace=workspace)) == ["commit_kernel"]
        assert gpu.launched(lambda: commit_prefix(x, rule=rule)) == ["zeros", "commit_kernel"]


class Doubling:
    """Doubles what it is given in place, and returns the sum."""

    def double(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return x.mul_(2).sum()


def test_tensors_are_moved_with_their_strides_and_what_is_written_comes_back() -> None:
    whole = torch.arange(12.0).view(3, 4)
    view = whole[:, 1:3]
    with gpu_of("sm_90"):
        assert to_gpu(view).stride() == (4, 1)
        assert to_gpu(view).storage_offset() == 1
        total = Moved(Doubling()).double(view)
    assert not total.is_cuda
    assert total == whole[:, 1:3].sum()
    assert whole.tolist() == [[0, 2, 4, 3], [4, 10, 12, 7], [8, 18, 20, 11]]
