"""The ordering gates on the sample kernel for every target, and on damaged copies of it."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest

from lsp_kernels.triton.aot import TARGETS
from tests.triton import ordering
from tests.triton.ordering import check_amdgcn, check_ptx
from tests.virtual_gpu_tests.sample import compiled

NVIDIA = [name for name, target in TARGETS.items() if target.backend == "cuda"]
AMD = [name for name, target in TARGETS.items() if target.backend == "hip"]


@lru_cache
def text(target: str, semantics: str = "acq_rel", wait: bool = True) -> str:
    return compiled(target, SEM=semantics, WAIT=wait and target.startswith("gfx9")).text


@pytest.mark.parametrize("target", NVIDIA)
def test_nvidia(target):
    assert check_ptx(text(target)) == []


@pytest.mark.parametrize("target", AMD)
def test_amd(target):
    assert check_amdgcn(text(target), target) == []


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_gfx9_needs_the_wait(target):
    assert check_amdgcn(text(target, wait=False), target) == [ordering.NOT_WAITED]


@pytest.mark.parametrize("semantics", ["relaxed", "acquire", "release"])
def test_weaker_semantics(semantics):
    violations = check_ptx(text("sm_90", semantics))
    assert len(violations) == 1
    assert "not acq_rel" in violations[0]
    found = check_amdgcn(text("gfx942", semantics), "gfx942")
    assert (ordering.NO_RELEASE in found) == (semantics != "release")
    assert (ordering.NO_ACQUIRE in found) == (semantics != "acquire")


TICKET = r"atom\.global|(?:global|buffer)_atomic_add"


def position(lines: list[str], *path: str) -> int:
    """Where a path leads from the ticket: "-x" goes back to the nearest line with x, "+x" on."""
    (at,) = (i for i, line in enumerate(lines) if re.search(TICKET, line))
    for step in path:
        direction = 1 if step[0] == "+" else -1
        at += direction
        while not re.search(rf"\b{step[1:]}", lines[at]):
            at += direction
    return at


def without(source: str, *path: str) -> str:
    """The text without the line that a path from the ticket leads to."""
    lines = source.splitlines()
    del lines[position(lines, *path)]
    return "\n".join(lines)


def repeated(source: str) -> str:
    lines = source.splitlines()
    lines.insert(position(lines), lines[position(lines)])
    return "\n".join(lines)


PTX_DAMAGE = [
    pytest.param(lambda t: without(t, r"-bar\.sync"), ordering.NO_BARRIER_BEFORE, id="no barrier before"),
    pytest.param(lambda t: without(t, r"+bar\.sync"), ordering.NO_BARRIER_AFTER, id="no barrier after"),
    pytest.param(repeated, "expected one ticket, found 2 atomics", id="two tickets"),
    pytest.param(without, "expected one ticket, found 0 atomics", id="no ticket"),
    pytest.param(lambda t: t.replace(".gpu.acq_rel", ".cta.acq_rel"), ordering.NOT_GPU_SCOPE, id="CTA scope"),
    pytest.param(lambda t: t.replace(".global.cg", ".global"), ordering.NO_CG_LOAD, id="no .cg"),
    pytest.param(lambda t: t.replace(".global.cg", ".global.nc"), ordering.NON_COHERENT, id="non-coherent"),
]


@pytest.mark.parametrize(("damage", "violation"), PTX_DAMAGE)
@pytest.mark.parametrize("target", ["sm_80", "sm_100"])
def test_damaged_ptx(target, damage, violation):
    mutant = damage(text(target))
    assert mutant != text(target)
    assert violation in check_ptx(mutant)


BEFORE, AFTER = "-s_barrier", "+s_barrier"
AMD_DAMAGE = [
    pytest.param("gfx942", [BEFORE, "-s_waitcnt vmcnt"], ordering.NOT_WAITED, id="gfx9 wait"),
    pytest.param("gfx942", ["-buffer_wbl2 sc1"], ordering.NO_RELEASE, id="gfx9 write-back"),
    pytest.param("gfx942", ["+buffer_inv sc1"], ordering.NO_ACQUIRE, id="gfx9 invalidate"),
    pytest.param("gfx942", ["+s_waitcnt vmcnt"], ordering.NO_ACQUIRE, id="gfx9 wait for the ticket"),
    pytest.param("gfx942", [BEFORE], ordering.NO_BARRIER_BEFORE, id="gfx9 barrier before"),
    pytest.param("gfx942", [AFTER], ordering.NO_BARRIER_AFTER, id="gfx9 barrier after"),
    pytest.param("gfx1100", [BEFORE, "-s_waitcnt_vscnt"], ordering.NOT_WAITED, id="gfx11 wait"),
    pytest.param("gfx1100", ["+buffer_gl1_inv"], ordering.NO_ACQUIRE, id="gfx11 invalidate"),
    pytest.param("gfx1100", [BEFORE], ordering.NO_BARRIER_BEFORE, id="gfx11 barrier before"),
    pytest.param("gfx1100", [AFTER], ordering.NO_BARRIER_AFTER, id="gfx11 barrier after"),
    pytest.param("gfx1100", [AFTER, "+buffer_gl0_inv"], ordering.NO_INVALIDATE, id="gfx11 first-level cache"),
    pytest.param("gfx1201", [BEFORE, "-s_wait_storecnt"], ordering.NOT_WAITED, id="gfx12 wait"),
    pytest.param("gfx1201", ["+global_inv scope:SCOPE_DEV"], ordering.NO_ACQUIRE, id="gfx12 invalidate"),
    pytest.param("gfx1201", ["-s_barrier_signal"], ordering.NO_BARRIER_BEFORE, id="gfx12 barrier before"),
    pytest.param("gfx1201", ["+s_barrier_wait"], ordering.NO_BARRIER_AFTER, id="gfx12 barrier after"),
    pytest.param(
        "gfx1201",
        ["+s_barrier_wait", "+global_inv"],
        ordering.NO_INVALIDATE,
        id="gfx12 first-level cache",
    ),
]


@pytest.mark.parametrize(("target", "path", "violation"), AMD_DAMAGE)
def test_damaged_amdgcn(target, path, violation):
    assert violation in check_amdgcn(without(text(target), *path), target)


def test_ticket_of_workgroup_scope():
    narrow = re.sub(r"(atomic_add.*)scope:SCOPE_DEV", r"\1", text("gfx1201"))
    assert ordering.NOT_GPU_SCOPE in check_amdgcn(narrow, "gfx1201")


def test_unknown_architecture():
    with pytest.raises(ValueError, match="gfx803"):
        check_amdgcn("", "gfx803")
