"""tcgen05: right against plain matrix algebra, and every rule broken once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.virtual_gpu import AccessError, PtxError, RaceError, UnsupportedPtx
from tests.virtual_gpu_tests.matrices import LINES, TYPES, copied, k_major, mn_major, numbers, registers
from tests.virtual_gpu_tests.snippets import run

SWIZZLE = {128: 2, 64: 4, 32: 6}
A_OFFSET, B_OFFSET = 1024, 17408
SHARED = 32768


def descriptor(offset: int, line: int, leading: int = 0) -> int:
    strides = (1024 + offset) >> 4 | leading >> 4 << 16 | 8 * line >> 4 << 32
    return strides | 1 << 46 | SWIZZLE[line] << 61


def form(name: str, m: int, n: int, *, across_a: bool = False, across_b: bool = False) -> int:
    kind = list(TYPES).index(name) ^ 1  # 0 float16, 1 bfloat16
    return 1 << 4 | kind << 7 | kind << 10 | across_a << 15 | across_b << 16 | n >> 3 << 17 | m >> 4 << 24


START = """
.reg .b32 %d<128>;
.reg .b32 %tensor, %mine, %barrier, %form;
setp.lt.u32 %p2, %r0, 32;
setp.eq.u32 %p3, %r0, 0;
setp.ge.u32 %p4, %r0, 96;
mov.pred %p5, -1;
mov.b32 %r40, 1024;
@%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r40], 64;
bar.sync 0;
ld.shared.b32 %tensor, [%r40];
bar.sync 0;
@%p2 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
shr.u32 %r41, %r0, 5;
shl.b32 %r42, %r41, 21;
add.s32 %mine, %tensor, %r42;
mov.b32 %barrier, 1040;
mov.b32 %r43, 2048;
mov.b32 %r44, 0;
"""
INIT = "@%p3 mbarrier.init.shared::cta.b64 [%barrier], 1;\n"
PROXY, BARRIER = "fence.proxy.async.shared::cta;\n", "bar.sync 0;\n"
COMMIT = "@%p3 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%barrier];\n"


def wait(parity: int = 0) -> str:
    look = f"mbarrier.try_wait.parity.shared::cta.b64 complete, [%barrier], {parity};"
    return f"{{\n.reg .pred complete;\nagain:\n{look}\n@!complete bra.uni again;\n}}\n"


END = BARRIER + (
    "@%p3 mbarrier.inval.shared::cta.b64 [%barrier];\n@%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tensor, 64;\n"
)


def mma(what: int, a: int | str, b: int, adds: str = "0") -> str:
    left = f"mov.b64 %rd30, {a};\n" if isinstance(a, int) else ""
    operands = f"[%tensor], {'%rd30' if isinstance(a, int) else a}, %rd31, %form, %p6"
    setting = f"mov.b64 %rd31, {b};\nmov.b32 %form, {what};\nmov.pred %p6, {adds};\n"
    return f"{left}{setting}@%p3 tcgen05.mma.cta_group::1.kind::f16 {operands};\n"


def loaded(m: int, n: int, pointer: str) -> str:
    """Loads D and stores each thread's registers: all columns of a row, or half of them where M is 64."""
    count = n if m == 128 else n // 2
    shape, split = ("32x32b", "") if m == 128 else ("16x32bx2", f", {count}")
    body = f"tcgen05.ld.sync.aligned.{shape}.x{count}.b32 {registers('d', count)}, [%mine]{split};\n"
    body += f"tcgen05.wait::ld.sync.aligned;\nmad.wide.u32 %rd21, %r0, {4 * count}, {pointer};\n"
    return body + "".join(f"st.global.b32 [%rd21 + {4 * i}], %d{i};\n" for i in range(count))


def rows(out: Tensor, m: int) -> Tensor:
    """What `loaded` stored, as the matrix [M, N]."""
    if m == 128:
        return out
    halves = out.view(4, 2, 16, -1)  # warp, half, row, column
    return torch.cat([halves[:, 0], halves[:, 1]], dim=-1).flatten(0, 1)


def empty(m: int, n: int) -> Tensor:
    return torch.zeros(128, n if m == 128 else n // 2)


def close(out: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(out.double(), expected.double(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", TYPES)
def test_operands_in_shared_memory(name: str, line: int, m: int) -> None:
    n, depth = 32, line // 2
    a, b = (numbers(size, depth, dtype=TYPES[name], seed=size) for size in (m, n))
    body = START + INIT + copied("%rd0", A_OFFSET, a.nbytes) + copied("%rd1", B_OFFSET, b.nbytes) + PROXY + BARRIER
    for step in range(depth // 16):
        places = (descriptor(offset + 32 * step, line) for offset in (A_OFFSET, B_OFFSET))
        body += mma(form(name, m, n), *places, "-1" if step else "0")
    out = empty(m, n)
    run(body + COMMIT + wait() + loaded(m, n, "%rd2") + END, k_major(a), k_major(b), out, threads=128, shared=SHARED)
    close(rows(out, m), a.double() @ b.double().T)


@pytest.mark.parametrize("line", LINES)
def test_transposed_operands(line: int) -> None:
    m, n = 64, 64
    a, b = (numbers(size, 16, dtype=torch.bfloat16, seed=seed) for seed, size in enumerate((m, n)))
    body = START + INIT + copied("%rd0", A_OFFSET, a.nbytes) + copied("%rd1", B_OFFSET, b.nbytes) + PROXY + BARRIER
    places = (descriptor(offset, line, 16 * line) for offset in (A_OFFSET, B_OFFSET))
    body += mma(form("bf16", m, n, across_a=True, across_b=True), *places) + COMMIT + wait() + loaded(m, n, "%rd2")
    out = empty(m, n)
    run(body + END, mn_major(a, line), mn_major(b, line), out, threads=128, shared=SHARED)
    close(rows(out, m), a.double() @ b.double().T)


N = 16
SET = "".join(f"mov.b32 %d{i}, 0f3F800000;\n" for i in range(N))
STORE_D = f"tcgen05.st.sync.aligned.32x32b.x{N}.b32 [%mine], {registers('d', N)};\n"
LOAD_A = "mad.wide.u32 %rd22, %r0, 32, %rd0;\n" + "".join(
    f"ld.global.b32 %d{16 + i}, [%rd22 + {4 * i}];\n" for i in range(8)
)
STORE_A = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%mine + 32], {{{', '.join(f'%d{16 + i}' for i in range(8))}}};\n"
WAIT_ST, WAIT_LD = "tcgen05.wait::st.sync.aligned;\n", "tcgen05.wait::ld.sync.aligned;\n"
FORM = str(form("bf16", 128, N))
PLACE = str(descriptor(A_OFFSET, 32))
MMA = mma(int(FORM), "[%tensor + 32]", int(PLACE), "-1")
WAIT, LOADED = wait(), loaded(128, N, "%rd2")
LOAD = LOADED.split("\n")[0] + "\n"
FILL = SET + LOAD_A + INIT + copied("%rd1", A_OFFSET, 512) + STORE_D + STORE_A
GOOD = START + FILL + WAIT_ST + PROXY + BARRIER + MMA + COMMIT + WAIT + LOADED + END


def execute(body: str, **options: bool) -> tuple[Tensor, Tensor]:
    """Runs a kernel of this form, ones plus A (in tensor memory) times B; returns what it stored and should store."""
    a, b = (numbers(size, 16, dtype=torch.bfloat16, seed=size) for size in (128, N))
    out = torch.zeros(128, N)
    run(body, a, k_major(b), out, threads=128, shared=SHARED, **options)
    return out, 1 + a.float() @ b.float().T


def test_left_operand_in_tensor_memory_and_a_start_that_is_added() -> None:
    close(*execute(GOOD))


OVERWRITE = "@%p3 st.shared.b32 [%r43], %r44;\n"
COPY_OVER = "@%p3 cp.async.ca.shared.global [%r43], [%rd1], 4;\n"
LAND = f"{COPY_OVER}cp.async.commit_group;\ncp.async.wait_group 0;\n"
SOME = WAIT.replace("{\n", "{\n@!%p2 bra skip;\n").replace("}\n", "skip:\n}\n")  # the first warp alone waits
AGAIN = MMA + COMMIT

BROKEN = [
    pytest.param(PROXY, "", RaceError, "since the last fence.proxy.async", id="no proxy fence"),
    pytest.param(PROXY, f"{PROXY}{LAND}", RaceError, "fence.proxy.async", id="proxy fence before a copy has landed"),
    pytest.param(PROXY + BARRIER, f"{BARRIER}@%p4 {PROXY}", RaceError, "fence.proxy.async", id="others fence"),
    pytest.param(PROXY + BARRIER, PROXY, RaceError, "another warp, no barrier since", id="no barrier"),
    pytest.param(WAIT_ST, "", RaceError, "mma before the wait for the tcgen05.st", id="operand not waited for"),
    pytest.param(STORE_A + WAIT_ST, f"{WAIT_ST}{STORE_A}", RaceError, "wait for the tcgen05.st", id="waits too early"),
    pytest.param(WAIT, "", RaceError, "load of a word of an mma that", id="no wait"),
    pytest.param("@!complete bra.uni again;\n", "", RaceError, "load of a word of an mma", id="looks only once"),
    pytest.param(WAIT, wait(1), RaceError, "load of a word of an mma", id="waits for the phase before"),
    pytest.param(WAIT, SOME, RaceError, "load of a word of an mma", id="one warp waits for all"),
    pytest.param(COMMIT, "", PtxError, "nobody completes", id="no commit"),
    pytest.param(MMA + COMMIT, f"{COMMIT}{MMA}", RaceError, "load of a word of an mma", id="commit before the mma"),
    pytest.param(COMMIT, COMMIT + COMMIT, RaceError, "commit before anybody has seen", id="two commits, one wait"),
    pytest.param(COMMIT + WAIT, f"{COMMIT}{WAIT}{AGAIN}{wait(1)}", RaceError, "commit before all warps have seen",
                 id="second phase before all warps have seen the first"),
    pytest.param(WAIT, f"{WAIT}{BARRIER}{AGAIN}{BARRIER}", RaceError, "load of a word of an mma",
                 id="second phase without a wait"),
    pytest.param(WAIT_LD, "", RaceError, r"%d0 is read but in flight", id="registers before wait::ld"),
    pytest.param(WAIT_LD, f"mov.b32 %d0, 0;\n{WAIT_LD}", PtxError, "written before its", id="register set"),
    pytest.param(WAIT_LD, f"{STORE_D.replace('%d', '%r')}{WAIT_LD}", RaceError, "wait for the tcgen05.ld",
                 id="store before wait::ld"),
    pytest.param(STORE_D, f"{STORE_D}{LOAD}", RaceError, "load before the wait for the", id="load too early"),
    pytest.param(WAIT, f"{STORE_D}{WAIT}", RaceError, "store of a word of an mma", id="result stored over"),
    pytest.param(WAIT, f"{STORE_A}{WAIT}", RaceError, "store of a word of an mma", id="operand stored over"),
    pytest.param(WAIT, f"{OVERWRITE}{WAIT}", RaceError, "matrix instruction in flight reads", id="shared stored over"),
    pytest.param(WAIT, f"{COPY_OVER}{WAIT}", RaceError, "matrix instruction in flight reads", id="shared copied over"),
    pytest.param(WAIT, f"{SOME}@%p4 st.shared.b32 [%r43], %r44;\n{WAIT}", RaceError, "in flight reads",
                 id="shared stored over by a warp that has not waited"),
    pytest.param(COMMIT, MMA.replace("[%tensor]", "[%tensor + 8]") + COMMIT, RaceError, "mma of a word of an mma",
                 id="another accumulator that overlaps"),
    pytest.param(COMMIT, MMA.replace("%tensor + 32", "%tensor") + COMMIT, RaceError, "mma of a word of an mma",
                 id="result as operand"),
    pytest.param(COMMIT, MMA.replace("[%tensor]", "[%tensor + 32]") + COMMIT, RaceError, "mma of a word of an mma",
                 id="result over the operand of another"),
    pytest.param(COMMIT, MMA.replace("%p3", "%p7") + COMMIT, RaceError, "mma of a word of an mma",
                 id="another thread's mma"),
    pytest.param(INIT, "", PtxError, "not one mbarrier that is initialised", id="no init"),
    pytest.param(INIT, INIT + INIT, PtxError, "initialised twice", id="two inits"),
    pytest.param(BARRIER + MMA, f"{BARRIER}@%p3 st.shared.b32 [%barrier], %r44;\n{MMA}", PtxError, "ordinary access",
                 id="store to an mbarrier"),
    pytest.param(WAIT, "@%p3 mbarrier.inval.shared::cta.b64 [%barrier];\n" + WAIT, RaceError, "may still arrive",
                 id="inval before the wait"),
    pytest.param(END, END.replace(BARRIER, ""), RaceError, "another warp read", id="inval while others look"),
    pytest.param(END, END.split("@%p2")[0], PtxError, "before it has freed", id="not freed"),
    pytest.param(WAIT + LOADED, "", PtxError, "may still arrive", id="ends without a wait"),
    pytest.param(LOADED, LOADED.replace("[%mine]", "[%tensor]"), PtxError, "own 32 lanes", id="lanes of others"),
    pytest.param(LOADED, LOADED.replace("[%mine]", "[%mine + 56]"), AccessError, "outside of what is allocated",
                 id="columns not allocated"),
    pytest.param(LOADED, LOADED.replace("[%mine]", "[%mine + 40]"), AccessError, "never written", id="never written"),
    pytest.param(PLACE, str(int(PLACE) & ~(7 << 61)), UnsupportedPtx, "swizzle", id="no swizzle"),
    pytest.param(PLACE, str(int(PLACE) & ~(1 << 46)), UnsupportedPtx, "version", id="descriptor of sm_90"),
    pytest.param(PLACE, str(int(PLACE) + SHARED // 16), AccessError, "out of shared memory", id="out of bounds"),
    pytest.param("@%p3 tcgen05.mma", "tcgen05.mma", UnsupportedPtx, "executed by several", id="every thread an mma"),
    pytest.param(FORM, str(form("bf16", 128, N + 8)), UnsupportedPtx, "24 columns", id="columns"),
    pytest.param(FORM, str(form("bf16", 128, N) | 1 << 13), UnsupportedPtx, "reserved", id="negated"),
    pytest.param("], 64;", "], 48;", UnsupportedPtx, "number of columns", id="odd allocation"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "error", "reason"), BROKEN)
def test_broken_rule(old: str, new: str, error: type[Exception], reason: str) -> None:
    assert old in GOOD
    body = GOOD.replace(old, new).replace("@%p7", "setp.eq.u32 %p7, %r0, 64;\n@%p7")
    with pytest.raises(error, match=reason):
        execute(body)


SOUND = [
    pytest.param(PROXY + BARRIER, BARRIER + PROXY, id="the issuing warp fences after the barrier"),
    pytest.param(WAIT, SOME + BARRIER, id="one warp waits, then a barrier"),
    pytest.param(WAIT, f"{WAIT}{OVERWRITE}", id="shared memory stored over after the wait"),
    pytest.param(WAIT_LD, f"{WAIT_LD}{STORE_D}{WAIT_ST}", id="stored over after wait::ld"),
]


@pytest.mark.parametrize(("old", "new"), SOUND)
def test_sound_order(old: str, new: str) -> None:
    assert old in GOOD
    close(*execute(GOOD.replace(old, new)))


def test_phases_follow_each_other() -> None:
    """The second phase has parity 1; a barrier lets the issuing warp know that all have seen the first."""
    got, once = execute(GOOD.replace(WAIT, f"{WAIT}{BARRIER}{AGAIN}{wait(1)}"))
    close(got, 2 * once - 1)


def test_it_runs_at_the_wait() -> None:
    """Without race checks, what is stored between issue and wait is what the mma reads."""
    got, expected = execute(GOOD.replace(WAIT, OVERWRITE + WAIT), races=False)
    assert not np.allclose(got[:, 0], expected[:, 0], atol=1e-3)
    close(got[:, 1:], expected[:, 1:])


BEFORE, AFTER = "tcgen05.fence::before_thread_sync;\n", "tcgen05.fence::after_thread_sync;\n"
FENCED = (
    GOOD.replace(PROXY + BARRIER, PROXY + BEFORE + BARRIER + AFTER)
    .replace(WAIT, WAIT + AFTER)
    .replace(END, BEFORE + END.replace(BARRIER, BARRIER + AFTER))
)


def test_fences_around_barriers_on_demand() -> None:
    close(*execute(FENCED, tensor_fences=True))
    parts = FENCED.split("tcgen05.fence::")
    assert len(parts) == 6
    for i in range(1, 6):
        end = parts[i].index(";") + 1
        text = (
            "tcgen05.fence::".join(parts[:i]) + parts[i][end:] + "".join("tcgen05.fence::" + p for p in parts[i + 1 :])
        )
        with pytest.raises(RaceError, match=r"tcgen05\.fence|of an mma"):
            execute(text, tensor_fences=True)
        execute(text)


def test_labels_in_braces_are_their_own() -> None:
    """Each wait has a label of the same name, also one inside of another."""
    got, once = execute(GOOD.replace(WAIT, f"again:\n{{\n{WAIT}}}\n{BARRIER}{AGAIN}{wait(1)}"))
    close(got, 2 * once - 1)


def test_warps_that_wait_let_the_issuing_one_pass() -> None:
    """The first warp issues its mma in code behind the loop in which the others wait already."""
    away = f"@%p2 bra issue;\nback:\n{WAIT}"
    body = GOOD.replace(MMA + COMMIT + WAIT, away).replace(
        END, f"{END}bra done;\nissue:\n{MMA}{COMMIT}bra back;\ndone:\n"
    )
    close(*execute(body))
