"""wgmma: right against plain matrix algebra, and every rule broken once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.virtual_gpu import AccessError, PtxError, RaceError, UnsupportedPtx
from tests.virtual_gpu_tests.matrices import LINES, TYPES, copied, k_major, mn_major, numbers, registers
from tests.virtual_gpu_tests.snippets import run

SWIZZLE = {128: 1, 64: 2, 32: 3}
B_OFFSET = 16384


def descriptor(offset: int, line: int, leading: int = 0) -> int:
    strides = (1024 + offset) >> 4 | leading >> 4 << 16 | 8 * line >> 4 << 32
    return strides | SWIZZLE[line] << 62


def accumulators(out: Tensor, n: int) -> Tensor:
    """Stored registers [threads, N / 2] as the matrix [64, N], by the manual's picture of the accumulators."""
    thread, register = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register // 2 % 2)
    column = 8 * (register // 4) + 2 * (thread % 4) + register % 2
    matrix = torch.full((64, n), torch.nan)
    matrix[row, column] = out
    return matrix


def stored(n: int, pointer: str) -> str:
    lines = [f"mad.wide.u32 %rd21, %r0, {2 * n}, {pointer};"]
    return "\n".join([*lines, *(f"st.global.b32 [%rd21 + {4 * i}], %d{i};" for i in range(n // 2))])


def product(name: str, a: str, b: int, n: int, keep: int, flags: str) -> str:
    instruction = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{name}.{name}"
    return f"mov.b64 %rd31, {b};\n{instruction} {registers('d', n // 2)}, {a}, %rd31, {keep}, 1, 1, {flags};\n"


START = ".reg .b32 %d<128>;\n.reg .b32 %a<4>;\n"
FENCES = "fence.proxy.async.shared::cta;\nbar.sync 0;\nwgmma.fence.sync.aligned;\n"
FINISH = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", TYPES)
def test_operands_in_shared_memory(name: str, line: int) -> None:
    """Lines hold line / 2 columns of K, so that the steps along K are additions of 32 bytes to the start."""
    n, depth = 24, line // 2
    a, b = (numbers(rows, depth, dtype=TYPES[name], seed=rows) for rows in (64, n))
    out = torch.zeros(128, n // 2)
    body = START + copied("%rd0", 0, a.nbytes) + copied("%rd1", B_OFFSET, b.nbytes) + FENCES
    for step in range(depth // 16):
        body += f"mov.b64 %rd30, {descriptor(32 * step, line)};\n"
        body += product(name, "%rd30", descriptor(B_OFFSET + 32 * step, line), n, min(step, 1), "0, 0")
    run(body + FINISH + stored(n, "%rd2"), k_major(a), k_major(b), out, threads=128, shared=32768)
    torch.testing.assert_close(accumulators(out, n).double(), a.double() @ b.double().T, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("line", LINES)
def test_transposed_operands_in_shared_memory(line: int) -> None:
    n = line
    a, b = (numbers(rows, 16, dtype=torch.bfloat16, seed=rows) for rows in (64, n))
    out = torch.zeros(128, n // 2)
    body = START + copied("%rd0", 0, a.nbytes) + copied("%rd1", B_OFFSET, b.nbytes) + FENCES
    body += f"mov.b64 %rd30, {descriptor(0, line, 16 * line)};\n"
    body += product("bf16", "%rd30", descriptor(B_OFFSET, line, 16 * line), n, 0, "1, 1") + FINISH + stored(n, "%rd2")
    run(body, mn_major(a, line), mn_major(b, line), out, threads=128, shared=32768)
    torch.testing.assert_close(accumulators(out, n).double(), a.double() @ b.double().T, atol=1e-4, rtol=1e-5)


N = 8
LOAD_A = "mad.wide.u32 %rd22, %r0, 16, %rd0;\nld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%rd22];\n"
ZERO = "".join(f"mov.b32 %d{i}, 0f3F800000;\n" for i in range(4))  # ones
MMA = product("bf16", registers("a", 4), descriptor(0, 32), N, 1, "0")
STORE_B, STORE_D = copied("%rd1", 0, 256), stored(N, "%rd2")
ISSUE = "mov.b32 %r40, 1024;\nmov.b32 %r41, 0;\nsetp.lt.u32 %p1, %r0, 32;\nsetp.eq.u32 %p3, %r0, 0;\n"
GOOD = START + LOAD_A + STORE_B + ZERO + ISSUE + FENCES + MMA + FINISH + STORE_D


def fragments(a: Tensor) -> Tensor:
    """A [64, 16] as the registers [threads, 8] of 16-bit halves, by the manual's picture."""
    thread, half = np.arange(128)[:, None], np.arange(8)[None, :]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (half // 2 % 2)
    return a[row, 2 * (thread % 4) + half % 2 + 8 * (half // 4)]


def execute(body: str, races: bool = True) -> tuple[Tensor, Tensor]:
    """Runs a kernel of this form; returns what it stored and what it should have stored."""
    a, b = (numbers(rows, 16, dtype=torch.bfloat16, seed=rows) for rows in (64, N))
    out = torch.zeros(128, N // 2)
    run(body, fragments(a), k_major(b), out, threads=128, shared=4096, races=races)
    return accumulators(out, N), 1 + a.float() @ b.float().T


def test_left_operand_in_registers_and_a_start_that_is_added() -> None:
    torch.testing.assert_close(*execute(GOOD), atol=1e-4, rtol=1e-5)


WAIT, COMMIT = "wgmma.wait_group.sync.aligned 0;\n", "wgmma.commit_group.sync.aligned;\n"
PROXY, BARRIER, FENCE = "fence.proxy.async.shared::cta;\n", "bar.sync 0;\n", "wgmma.fence.sync.aligned;\n"
OVERWRITE = "@%p3 st.shared.b32 [%r40], %r41;\n"
COPY_OVER = "@%p3 cp.async.ca.shared.global [%r40], [%rd1], 4;\n"
LAND = f"{COPY_OVER}cp.async.commit_group;\ncp.async.wait_group 0;\n"
PLACE = str(descriptor(0, 32))

BROKEN = [
    pytest.param(PROXY, "", RaceError, "since the last fence.proxy.async", id="no proxy fence"),
    pytest.param(PROXY, f"{PROXY}{OVERWRITE}", RaceError, "fence.proxy.async", id="proxy fence before the store"),
    pytest.param(PROXY, f"{PROXY}{LAND}", RaceError, "fence.proxy.async", id="proxy fence before a copy has landed"),
    pytest.param(PROXY, "@!%p1 " + PROXY, RaceError, "fence.proxy.async", id="proxy fence of warps that wrote nothing"),
    pytest.param(PROXY + BARRIER, f"{BARRIER}@%p1 {PROXY}", RaceError, "fence.proxy.async",
                 id="proxy fence of one of four warps that read"),
    pytest.param(BARRIER, "", RaceError, "another warp wrote", id="no barrier"),
    pytest.param(BARRIER + FENCE, f"{BARRIER}{FENCE}{COPY_OVER}", RaceError, "before its wait_group",
                 id="copy that has not landed"),
    pytest.param(FENCE, "", RaceError, "without a wgmma.fence", id="no fence"),
    pytest.param(FENCE, f"{FENCE}mov.b32 %d1, 0;\n", RaceError, "after the wgmma.fence", id="accumulator set too late"),
    pytest.param(FENCE, f"{FENCE}mov.b32 %a1, 0;\n", RaceError, "after the wgmma.fence", id="operand set too late"),
    pytest.param(FENCE, f"{FENCE}mov.b32 %r9, %d1;\n", RaceError, "after the wgmma.fence", id="accumulator read late"),
    pytest.param(WAIT, f"{WAIT}{MMA}{FINISH}", RaceError, "since the last wgmma.fence", id="second round unfenced"),
    pytest.param(WAIT, f"mov.b32 %r9, %d1;\n{WAIT}", RaceError, r"%d1 is read but in flight", id="result too early"),
    pytest.param(WAIT, f"mov.b32 %r9, %a1;\n{WAIT}", RaceError, r"%a1 is read but in flight", id="operand read"),
    pytest.param(WAIT, f"mov.b32 %d1, 0;\n{WAIT}", RaceError, "written before its wgmma.wait_group", id="result set"),
    pytest.param(WAIT, f"mov.b32 %a1, 0;\n{WAIT}", RaceError, "written before its wgmma.wait_group", id="operand set"),
    pytest.param(WAIT, f"@%p1 mov.b32 %d1, 0;\n{WAIT}", RaceError, "written before", id="result set by some threads"),
    pytest.param(WAIT, WAIT.replace("0", "1"), RaceError, "in flight", id="wait for all groups but one"),
    pytest.param(COMMIT, "", RaceError, "in flight", id="no commit"),
    pytest.param(WAIT + STORE_D, "", PtxError, "ends before a wgmma.wait_group", id="no wait"),
    pytest.param(WAIT, f"{OVERWRITE}{WAIT}", RaceError, "matrix instruction in flight reads", id="stored over"),
    pytest.param(WAIT, f"{COPY_OVER}{WAIT}", RaceError, "matrix instruction in flight reads", id="copied over"),
    pytest.param(WAIT, f"{WAIT}{OVERWRITE}", RaceError, "another warp read", id="stored over while others may read"),
    pytest.param(COMMIT, MMA.replace("%d0, %d1", "%d1, %d0") + COMMIT, RaceError, "overlap", id="order of registers"),
    pytest.param(COMMIT, MMA.replace("%a2", "%d2") + COMMIT, RaceError, "another wgmma in flight writes",
                 id="result as operand"),
    pytest.param("%d1", "%d2", UnsupportedPtx, "different 32-bit registers", id="one register twice"),
    pytest.param(PLACE, str(descriptor(0, 32) + 4096 // 16), AccessError, "out of shared memory",
                 id="operand out of bounds"),
    pytest.param(PLACE, str(descriptor(512, 32)), AccessError, "never written", id="operand elsewhere"),
    pytest.param(PLACE, str(descriptor(0, 32) & ~(3 << 62)), UnsupportedPtx, "swizzle", id="no swizzle"),
    pytest.param(PLACE, str(descriptor(0, 32) | 1 << 49), UnsupportedPtx, "reserved", id="base offset"),
    pytest.param("%rd31, 1, 1, 1", "%rd31, %p1, 1, 1", PtxError, "different scale-d", id="threads disagree"),
    pytest.param("%rd31, 1, 1, 1", "%rd31, 1, -1, 1", UnsupportedPtx, "negated", id="negated"),
    pytest.param("wgmma.mma_async", "@%p1 wgmma.mma_async", UnsupportedPtx, "part of a CTA", id="one warp alone"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "error", "reason"), BROKEN)
def test_broken_rule(old: str, new: str, error: type[Exception], reason: str) -> None:
    assert old in GOOD
    with pytest.raises(error, match=reason):
        execute(GOOD.replace(old, new))


SOUND = [
    pytest.param(PROXY + BARRIER, BARRIER + PROXY, id="the reader fences after the barrier"),
    pytest.param(PROXY + BARRIER, f"{BARRIER}@!%p1 {PROXY}{BARRIER}", id="others fence between two barriers"),
    pytest.param(WAIT, f"{WAIT}{BARRIER}{OVERWRITE}", id="stored over after wait and barrier"),
    pytest.param(WAIT, f"{WAIT}mov.b32 %a1, %a0;\n", id="the operand's registers after the wait"),
    pytest.param(PROXY, LAND + PROXY, id="proxy fence after a copy has landed"),
]


@pytest.mark.parametrize(("old", "new"), SOUND)
def test_sound_order(old: str, new: str) -> None:
    assert old in GOOD
    torch.testing.assert_close(*execute(GOOD.replace(old, new)), atol=1e-4, rtol=1e-5)


def test_it_runs_at_the_wait() -> None:
    """Without race checks, what is stored between issue and wait is what the wgmma reads."""
    got, expected = execute(GOOD.replace(WAIT, OVERWRITE + WAIT), races=False)
    assert not torch.allclose(got[:, 0], expected[:, 0], atol=1e-3)
    torch.testing.assert_close(got[:, 1:], expected[:, 1:], atol=1e-4, rtol=1e-5)


def test_a_younger_group_keeps_its_registers() -> None:
    """Two groups on the same accumulators: the wait for the older one gives nothing back, the wait for both does."""
    twice = GOOD.replace(COMMIT, COMMIT + MMA + COMMIT)
    got, once = execute(twice)
    torch.testing.assert_close(got, 2 * once - 1, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(*(x for x in (execute(twice.replace(WAIT, WAIT.replace("0", "1") + WAIT))[0], got)))
    for register in ("%d1", "%a1"):
        with pytest.raises(RaceError, match=f"{register} is read but in flight"):
            execute(twice.replace(WAIT, f"{WAIT.replace('0', '1')}mov.b32 %r9, {register};\n{WAIT}"))
