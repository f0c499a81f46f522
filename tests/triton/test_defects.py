"""Defects that only compiled code can show: a barrier that is not there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from lsp_kernels.triton import configs
from lsp_kernels.triton.aot.builds import build, build_attention
from lsp_kernels.triton.commit import commit_kernel
from tests.triton.gates import violations
from tests.triton.inputs import commit_inputs
from tests.triton.mutants import Defect, damaged
from tests.virtual_gpu import RaceError, launch

BEFORE_TICKET = Defect(
    "no barrier before the ticket", "commit",
    "            publish(WAIT)\n            if tl.atomic_add", "            if tl.atomic_add", (),
)  # fmt: skip
BEFORE_MERGE = Defect("no barrier before the ticket", "attention", "            publish(WAIT)\n", "", ())
BEFORE_RULE = Defect("no barrier before the rule", "commit", "publish(WAIT)\n                chosen", "chosen", ())


def test_missing_barrier_before_the_rule_is_a_race(tmp_path: Path) -> None:
    made = build(commit_kernel, "sm_90", torch.bfloat16, splits=2)
    broken = dataclasses.replace(made, kernel=damaged(BEFORE_RULE, tmp_path).commit_kernel)
    grid, arguments, _ = commit_inputs().prepare(broken)
    with pytest.raises(RaceError):
        launch(broken.compile(), grid, arguments, seed=1)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_missing_barrier_before_the_ticket_fails_the_gate(target: str, tmp_path: Path) -> None:
    """Elsewhere the compiler puts a barrier of its own before the ticket's atomic."""
    made = build(commit_kernel, target, torch.bfloat16)
    broken = dataclasses.replace(made, kernel=damaged(BEFORE_TICKET, tmp_path).commit_kernel)
    assert violations(broken, broken.compile()) != []


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_a_barrier_without_a_wait_fails_the_gate(target: str) -> None:
    made = build(commit_kernel, target, torch.bfloat16)
    broken = dataclasses.replace(made, constants=made.constants | {"WAIT": False})
    assert violations(broken, broken.compile()) != []


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_a_shared_tile_without_its_barrier_or_wait_fails_the_gate(target: str, tmp_path: Path) -> None:
    small = configs.attention.ATTENTION[target][torch.bfloat16][32][0]
    made = build_attention(target, head_dim=32, config=small)
    assert violations(made, made.compile()) == []
    without_wait = dataclasses.replace(made, constants=made.constants | {"WAIT": False})
    without_barrier = dataclasses.replace(made, kernel=damaged(BEFORE_MERGE, tmp_path, "attention").attention_kernel)
    for broken in (without_wait, without_barrier):
        assert violations(broken, broken.compile()) != []
