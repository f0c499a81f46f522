"""Defects that only compiled code can show: a barrier that is not there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from lsp_kernels.triton.builds import build
from lsp_kernels.triton.commit import commit_kernel
from tests.ptx import RaceError, launch
from tests.triton.gates import violations
from tests.triton.mutants import Defect, damaged
from tests.triton.test_ptx import inputs

PUBLISH = "            publish(WAIT)\n            if tl.atomic_add"
BARRIERS = [
    Defect("no barrier before the ticket", "commit", PUBLISH, "            if tl.atomic_add", ()),
    Defect("no barrier before the rule", "commit", "publish(WAIT)\n                chosen", "chosen", ()),
]


@pytest.mark.parametrize("defect", BARRIERS, ids=lambda d: d.name)
def test_missing_barrier_is_a_race(defect: Defect, tmp_path: Path) -> None:
    made = build(commit_kernel, "sm_90", torch.bfloat16, splits=2)
    broken = dataclasses.replace(made, kernel=damaged(defect, tmp_path).commit_kernel)
    compiled = broken.compile()
    grid, arguments, _ = inputs().prepare(broken)
    with pytest.raises(RaceError):
        launch(compiled, grid, arguments, seed=1)


def test_missing_barrier_before_the_ticket_fails_the_gates(tmp_path: Path) -> None:
    for target in ("sm_80", "gfx942", "gfx1201"):
        made = build(commit_kernel, target, torch.bfloat16)
        broken = dataclasses.replace(made, kernel=damaged(BARRIERS[0], tmp_path).commit_kernel)
        assert violations(broken, broken.compile()) != []


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_a_barrier_without_a_wait_fails_the_gate(target: str) -> None:
    made = build(commit_kernel, target, torch.bfloat16)
    broken = dataclasses.replace(made, constants=made.constants | {"WAIT": False})
    assert violations(broken, broken.compile()) != []
