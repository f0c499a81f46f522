"""Every kernel compiles for every architecture, without spills, with wide loads and the ticket recipe in place."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch

from lsp_kernels import info
from lsp_kernels.rule import SPAN
from lsp_kernels.triton import configs
from lsp_kernels.triton.aot import TARGETS, builds, report
from lsp_kernels.triton.commit import commit_kernel
from tests.triton.gates import violations
from tests.triton.ordering import NO_PROXY_FENCE


@pytest.mark.parametrize("target", TARGETS)
def test_representative_builds_pass_every_gate(target: str) -> None:
    for made in [*builds.representative(target), builds.build(commit_kernel, target, torch.bfloat16, aligned=False)]:
        assert violations(made, made.compile()) == [], made.name


def test_every_target_is_configured() -> None:
    families = (
        configs.commit.COMMIT, configs.commit.STATS, configs.commit.SELECT, configs.attention.ATTENTION,
        configs.head.HEAD, configs.block.BLOCK,
    )  # fmt: skip
    assert all(set(by_architecture) == set(TARGETS) for by_architecture in families)
    for table in (*configs.commit.COMMIT.values(), *configs.commit.STATS.values()):
        for config in table.values():
            assert 4 * config.block <= SPAN, "a group of tiles may touch two spans of suppressed ids, not three"
    for by_head_dim in (table for tables in configs.attention.ATTENTION.values() for table in tables.values()):
        assert list(by_head_dim) == [32, 64, 128, 256]
        for by_size in by_head_dim.values():
            assert by_size == sorted(by_size, key=lambda config: config.rows)
            assert by_size[-1].rows <= configs.attention.MOST_ROWS
    for by_noise in (tiles for tables in configs.head.HEAD.values() for tiles in tables.values()):
        for by_rows in by_noise.values():
            assert by_rows == sorted(by_rows, key=lambda config: config.rows)


def test_tensor_cores_read_only_what_a_proxy_fence_has_passed() -> None:
    """Two stages on sm_100 lack the fence, so that no tile has them there; three stages have it."""
    tiles = [t for by_head_dim in configs.attention.ATTENTION["sm_100"].values() for t in by_head_dim.values()]
    tiles += [by_rows for by_noise in configs.head.HEAD["sm_100"].values() for by_rows in by_noise.values()]
    assert all(tile.stages != 2 for by_size in tiles for tile in by_size)
    large = configs.attention.ATTENTION["sm_100"][torch.bfloat16][256][-1]
    for stages, problems in ((2, [NO_PROXY_FENCE]), (3, [])):
        made = builds.build_attention("sm_100", head_dim=256, config=dataclasses.replace(large, stages=stages))
        assert violations(made, made.compile()) == problems


def test_info_prints_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report, "TARGETS", ["sm_90"])
    monkeypatch.setattr(sys, "argv", ["info", "--targets"])
    info.main()
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == list(report.Row._fields)
    kernels = ("commit", "stats", "select", "commit", "attention", "head_commit", "add_norm", "rotate", "silu_mul")
    assert [row.split()[:2] for row in rows] == [["sm_90", f"{name}_kernel"] for name in kernels]


@pytest.mark.parametrize("family", builds.FAMILIES)
def test_the_table_of_targets_is_not_stale(family: str) -> None:
    assert report.is_fresh(family), f"run `make test-targets KERNEL={family}` to renew docs/targets"


def test_a_table_is_stale_only_when_source_and_code_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    held = report.stored_fingerprints()["block"]
    for changed, fresh in ((["source"], True), (["ttir"], True), (["source", "ttir"], False)):
        now = {"block": held | dict.fromkeys(changed, "another")}
        monkeypatch.setattr(report, "stored_fingerprints", lambda now=now: now)
        assert report.is_fresh("block") == fresh


def test_another_source_of_a_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = report.source_of("block")
    monkeypatch.setattr(next(builds.shipped("sm_90", "block")).kernel, "hash", "another")
    assert report.source_of("block") != before


def test_the_summary_describes_the_tables() -> None:
    assert report.FOLDER.with_suffix(".md").read_text() == report.summary()
