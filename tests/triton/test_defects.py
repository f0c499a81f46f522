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
from tests.triton.mutants import Defect, damaged

BEFORE_TICKETS = [
    Defect("no barrier before the ticket of a row", "commit", "publish(WAIT)\n                last", "last", ()),
    Defect("no barrier before the ticket of a sequence", "commit", "publish(WAIT)\n                if", "if", ()),
]
BEFORE_MERGE = Defect("no barrier before the ticket", "attention", "            publish(WAIT)\n", "", ())


@pytest.mark.parametrize("defect", BEFORE_TICKETS, ids=lambda d: d.name)
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_missing_barrier_before_a_ticket_fails_the_gate(target: str, defect: Defect, tmp_path: Path) -> None:
    """Elsewhere the compiler puts a barrier of its own before the ticket's atomic."""
    made = build(commit_kernel, target, torch.bfloat16)
    broken = dataclasses.replace(made, kernel=damaged(defect, tmp_path).commit_kernel)
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
