"""Loads, stores, atomics and copies: values, bounds, alignment, and the traffic counters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support import in_sparse_file
from tests.virtual_gpu import AccessError, RaceError, UnsupportedPtx
from tests.virtual_gpu_tests.snippets import run

OWN_WORD = "mad.wide.u32 %rd8, %r0, 4, %rd0;\nmad.wide.u32 %rd9, %r0, 4, %rd1;\n"


def words(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int32)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("hints", ["", ".L1::evict_first.L2::cache_hint"])
def test_vector_copy(count, hints):
    registers = ", ".join(f"%r{i + 10}" for i in range(count))
    policy = ", %rd20" if hints else ""
    body = f"""
    createpolicy.fractional.L2::evict_first.b64 %rd20, 1.0;
    mad.wide.u32 %rd8, %r0, {4 * count}, %rd0;
    mad.wide.u32 %rd9, %r0, {4 * count}, %rd1;
    ld.global{hints}.v{count}.b32 {{ {registers} }}, [ %rd8 + 0 ]{policy};
    st.global.v{count}.b32 [ %rd9 + 0 ], {{ {registers} }};
    """
    source, target = words(64 * count), torch.zeros(64 * count, dtype=torch.int32)
    done = run(body, source, target)
    assert torch.equal(source, target)
    assert (done.reads(source) == 1).all()
    assert (done.writes(target) == 1).all()
    assert (done.reads(target) == 0).all()
    assert done.bytes_read(source) == source.nbytes


@pytest.mark.parametrize("cache", ["", ".ca", ".cg", ".cs", ".cv"])
def test_cache_operators_change_nothing(cache):
    source, target = words(64), torch.zeros(64, dtype=torch.int32)
    run(OWN_WORD + f"ld.global{cache}.b32 %r1, [%rd8];\nst.global.b32 [%rd9], %r1;", source, target)
    assert torch.equal(source, target)


def test_narrow_loads_extend_and_narrow_stores_truncate():
    body = """
    cvt.u64.u32 %rd7, %r0;
    add.s64 %rd8, %rd0, %rd7;
    ld.global.s8 %r1, [%rd8];
    ld.global.u8 %r2, [%rd8];
    ld.global.b8 { %rs1 }, [%rd8];
    mad.wide.u32 %rd9, %r0, 8, %rd1;
    st.global.v2.b32 [%rd9], {%r1, %r2};
    add.s64 %rd10, %rd2, %rd7;
    st.global.b8 [%rd10], %rs1;
    """
    source = torch.arange(-32, 32, dtype=torch.int8)
    wide, narrow = torch.zeros(64, 2, dtype=torch.int32), torch.zeros(64, dtype=torch.int8)
    run(body, source, wide, narrow)
    assert wide[:, 0].tolist() == list(range(-32, 32))
    assert wide[:, 1].tolist() == [v % 256 for v in range(-32, 32)]
    assert torch.equal(narrow, source)


def test_64_bit_row_offsets(tmp_path):
    """Rows four gigabytes apart: an offset computed in 32 bits would miss them."""
    rows = in_sparse_file(tmp_path / "rows", (3, 64), (1 << 31, 1)).view(torch.int16)
    rows.copy_(torch.arange(192).reshape(3, 64))
    body = """
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %rd2, %r1, -2147483648;
    shl.b64 %rd3, %rd2, 1;
    add.s64 %rd4, %rd0, %rd3;
    mad.wide.u32 %rd5, %r0, 2, %rd4;
    ld.global.b16 %rs1, [%rd5];
    mad.lo.s32 %r2, %r1, 64, %r0;
    mad.wide.u32 %rd6, %r2, 2, %rd1;
    st.global.b16 [%rd6], %rs1;
    """
    out = torch.zeros(3, 64, dtype=torch.int16)
    done = run(body, rows, out, grid=(3,))
    assert torch.equal(out, rows)
    assert (done.reads(rows) == 1).all()


def test_reads_of_a_strided_view():
    """Only columns 8 to 23 of rows 1 and 2 of a larger tensor are read, some of them twice."""
    full = torch.zeros(4, 40, dtype=torch.int16)
    view = full[1:3, 8:24]
    body = """
    setp.lt.u32 %p1, %r0, 16;
    mad.wide.u32 %rd8, %r0, 2, %rd0;
    @%p1 ld.global.b16 %rs1, [%rd8];
    @%p1 ld.global.b16 %rs1, [%rd8+80];
    setp.lt.u32 %p2, %r0, 4;
    @%p2 ld.global.b16 %rs1, [%rd8];
    """
    done = run(body, view)
    expected = np.ones((2, 16), int)
    expected[0, :4] = 2
    np.testing.assert_array_equal(done.reads(view), expected)
    assert done.bytes_read(view) == 2 * expected.sum()


def test_overlapping_arguments_share_their_memory():
    base = words(64)
    body = OWN_WORD + "ld.global.b32 %r1, [%rd8];\nadd.s32 %r1, %r1, 5;\nst.global.b32 [%rd9], %r1;"
    run(body, base, base)
    assert base.tolist() == list(range(5, 69))


OUTSIDE = [
    pytest.param("ld.global.b32 %r1, [%rd8+4];", "4 bytes past the end of argument 0", id="past"),
    pytest.param("ld.global.b32 %r1, [%rd8+-4];", "4 bytes before argument 0", id="before"),
    pytest.param("st.global.b32 [%rd8+4096], %r0;", "past the end", id="store"),
    pytest.param("ld.global.b32 %r1, [%rd8+2];", "misaligned", id="misaligned"),
    pytest.param("ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd8];", "misaligned", id="unaligned vector"),
    pytest.param("cvt.u64.u32 %rd5, %r0;\nld.global.b8 %rs1, [%rd5];", "outside of every", id="null"),
    pytest.param("atom.global.gpu.relaxed.add.u32 %r1, [%rd8+4], 1;", "atomic", id="atomic"),
    pytest.param("st.shared.b32 [%r0+1024], %r0;", "misaligned", id="misaligned shared"),
    pytest.param("shl.b32 %r1, %r0, 2;\nst.shared.b32 [%r1+1028], %r0;", "out-of-bounds", id="shared"),
    pytest.param("shl.b32 %r1, %r0, 2;\nst.shared.b32 [%r1], %r0;", "out-of-bounds", id="shared base"),
    pytest.param("ld.shared.b32 %r1, [global_smem];", "never written", id="uninitialised shared"),
]


@pytest.mark.parametrize("start", [0, 5, 64], ids=["aligned", "odd", "far"])
@pytest.mark.parametrize(("body", "reason"), OUTSIDE)
def test_access_error(body, reason, start):
    """The bounds are those of the view, wherever in its storage it starts."""
    view = words(256)[start : start + 64]
    with pytest.raises(AccessError, match=reason):
        run(OWN_WORD.splitlines()[0] + body, view, shared=256)


def test_masked_off_lanes_are_not_checked():
    body = OWN_WORD.splitlines()[0] + "setp.lt.u32 %p1, %r0, 10;\n@%p1 ld.global.b32 %r1, [%rd8];"
    done = run(body, words(10))
    assert done.memory.segments[0].loads[0].threads.tolist() == list(range(10))


def test_shared_memory_is_poisoned_without_race_checks():
    body = OWN_WORD + "ld.shared.b32 %r1, [global_smem+4];\nst.global.b32 [%rd8], %r1;"
    out = torch.zeros(64, dtype=torch.float32)
    run(body, out, torch.zeros(64), shared=16, races=False)
    assert out.isnan().all()


ATOMICS = [
    ("add.u32", lambda old, v: old + v),
    ("max.s32", max),
    ("min.s32", min),
    ("or.b32", lambda old, v: old | v),
    ("xor.b32", lambda old, v: old ^ v),
    ("exch.b32", lambda old, v: v),
]


@pytest.mark.parametrize(("name", "function"), ATOMICS, ids=[a[0] for a in ATOMICS])
def test_atomics_return_the_old_value(name, function):
    body = OWN_WORD + f"atom.global.gpu.acq_rel.{name} %r1, [%rd0], %r0;\nst.global.b32 [%rd9], %r1;"
    word, old = torch.tensor([37], dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    run(body, word, old)
    value, expected = 37, []
    for lane in range(64):
        expected.append(value)
        value = function(value, lane)
    assert old.tolist() == expected
    assert word.item() == value


ASYNC = """
mad.wide.u32 %rd8, %r0, 16, %rd0;
mad.wide.u32 %rd9, %r0, 16, %rd1;
shl.b32 %r1, %r0, 4;
add.s32 %r2, %r1, 1024;
setp.lt.u32 %p1, %r0, 40;
selp.b32 %r3, 16, 0, %p1;
cp.async.cg.shared.global [ %r2 + 0 ], [ %rd8 + 0 ], 0x10, %r3;
cp.async.commit_group;
cp.async.wait_group 0;
bar.sync 0;
ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r2];
st.global.v4.b32 [%rd9], {%r10, %r11, %r12, %r13};
"""


def test_asynchronous_copy_fills_with_zeros():
    source, target = words(256), torch.full((256,), -1, dtype=torch.int32)
    done = run(ASYNC, source, target, shared=1024)
    assert target.tolist() == [v if v < 160 else 0 for v in range(256)]
    assert done.bytes_read(source) == 640


def test_asynchronous_copy_is_not_there_before_the_wait():
    text = ASYNC.replace("cp.async.wait_group 0;", "cp.async.wait_group 1;")
    tensors = words(256), torch.zeros(256, dtype=torch.int32)
    with pytest.raises((RaceError, AccessError)):
        run(text, *tensors, shared=1024)
    part = ASYNC.replace("selp.b32 %r3, 16, 0, %p1;", "mov.b32 %r3, 8;")
    with pytest.raises(UnsupportedPtx, match="part of a block"):
        run(part, *tensors, shared=1024)


def test_one_store_with_two_values():
    with pytest.raises(RaceError, match="different values"):
        run("st.global.b32 [%rd0], %r0;", words(1))
    run("mov.b32 %r1, 3;\nst.global.b32 [%rd0], %r1;", words(1))
