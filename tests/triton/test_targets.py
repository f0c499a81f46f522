"""Every kernel compiles for every architecture, without spills, with wide loads and the ticket recipe in place."""

from __future__ import annotations

import sys

import pytest
import torch

from lsp_kernels import info
from lsp_kernels.rule import SPAN
from lsp_kernels.triton import builds, configs, report
from lsp_kernels.triton.aot import TARGETS
from lsp_kernels.triton.commit import commit_kernel
from lsp_kernels.triton.report import fingerprint_of, stored_fingerprint
from tests.triton.gates import violations


@pytest.mark.parametrize("target", TARGETS)
def test_representative_builds_pass_every_gate(target: str) -> None:
    for made in [*builds.representative(target), builds.build(commit_kernel, target, torch.bfloat16, aligned=False)]:
        assert violations(made, made.compile()) == [], made.name


def test_every_target_is_configured() -> None:
    assert set(configs.COMMIT) == set(configs.STATS) == set(configs.ATTENTION) == set(TARGETS)
    for table in (*configs.COMMIT.values(), *configs.STATS.values()):
        for config in table.values():
            assert 4 * config.block <= SPAN, "a group of tiles may touch two spans of suppressed ids, not three"
    for by_head_dim in (table for tables in configs.ATTENTION.values() for table in tables.values()):
        assert list(by_head_dim) == [32, 64, 128, 256]
        for by_size in by_head_dim.values():
            assert by_size == sorted(by_size, key=lambda config: config.rows)
            assert by_size[-1].rows <= configs.MOST_ROWS


@pytest.mark.parametrize(
    ("architecture", "nearest"),
    [("sm_90", "sm_90"), ("sm_87", "sm_86"), ("sm_121", "sm_120"), ("sm_75", "sm_80"), ("gfx90a", "gfx90a")],
)
def test_unknown_architectures_use_the_newest_older_one(architecture: str, nearest: str) -> None:
    expected = nearest if nearest in TARGETS else "gfx942"
    assert configs.nearest(architecture) == expected


def test_info_prints_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report, "TARGETS", ["sm_90"])
    monkeypatch.setattr(sys, "argv", ["info", "--targets"])
    info.main()
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["architecture", "build", "registers", "spills", "shared", "widest", "load", "occupancy",
                              "tensor", "cores"]  # fmt: skip
    kernels = ("commit", "stats", "select", "attention")
    assert [row.split()[:2] for row in rows] == [["sm_90", f"{name}_kernel"] for name in kernels]


@pytest.mark.parametrize("family", builds.FAMILIES)
def test_the_table_of_targets_is_not_stale(family: str) -> None:
    renew = f"run `make test-targets KERNEL={family}` to renew docs/targets.md"
    assert stored_fingerprint(family) == fingerprint_of(family), renew
