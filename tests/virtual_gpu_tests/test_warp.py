"""Instructions in which a warp's lanes exchange values, and control flow of diverging threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.virtual_gpu import PtxError, UnsupportedPtx
from tests.virtual_gpu_tests.snippets import evaluate, run

LANES = np.arange(64) % 32
FIRST = np.arange(64) - LANES
VALUES = np.random.default_rng(0).integers(0, 2**32, 64, np.uint32)


@pytest.mark.parametrize(
    ("mode", "amount", "control", "source"),
    [
        pytest.param("bfly", 4, 31, LANES ^ 4, id="bfly"),
        pytest.param("up", 3, 0, np.where(LANES >= 3, LANES - 3, LANES), id="up"),
        pytest.param("down", 5, 31, np.where(LANES < 27, LANES + 5, LANES), id="down"),
        pytest.param("idx", 7, 31, np.full(64, 7), id="idx"),
        pytest.param("idx", 1, 0x1C1F, LANES // 4 * 4 + 1, id="idx in segments of four"),
        pytest.param("up", 1, 0x1800, LANES - (LANES % 8 > 0), id="up in segments of eight"),
    ],
)
def test_shuffle(mode, amount, control, source):
    body = f"shfl.sync.{mode}.b32 %out, %a, {amount}, {control}, -1;"
    np.testing.assert_array_equal(evaluate(body, VALUES, out="u4"), VALUES[FIRST + source])


def test_shuffle_reports_lanes_out_of_range():
    inside = evaluate("shfl.sync.up.b32 %r9|%out, %a, 3, 0, -1;", VALUES, out="?")
    np.testing.assert_array_equal(inside, LANES >= 3)


@pytest.mark.parametrize(
    ("name", "dtype", "function"),
    [
        ("add.s32", "i4", np.add),
        ("min.s32", "i4", np.minimum),
        ("max.u32", "u4", np.maximum),
        ("or.b32", "u4", np.bitwise_or),
        ("and.b32", "u4", np.bitwise_and),
    ],
)
def test_redux(name, dtype, function):
    values = VALUES.view(dtype)
    expected = np.repeat(function.reduce(values.reshape(2, 32), axis=1, dtype=dtype), 32)
    got = evaluate(f"redux.sync.{name} %out, %a, -1;", values, out=dtype)
    np.testing.assert_array_equal(got, expected)


def test_redux_of_floats_ignores_nan_unless_asked():
    values = np.random.default_rng(1).standard_normal(64).astype("f")
    values[5] = np.nan
    got = evaluate("redux.sync.max.f32 %out, %a, -1;", values, out="f")
    np.testing.assert_array_equal(got, np.repeat(np.nanmax(values.reshape(2, 32), 1), 32))
    strict = evaluate("redux.sync.max.NaN.f32 %out, %a, -1;", values, out="f")
    assert np.isnan(strict[:32]).all()
    assert not np.isnan(strict[32:]).any()


def test_votes():
    votes = VALUES % 3 == 0
    ballot = (votes.reshape(2, 32) << np.arange(32)).sum(1).astype("u4")
    got = evaluate("vote.sync.ballot.b32 %out, %a, -1;", votes, out="u4")
    np.testing.assert_array_equal(got, np.repeat(ballot, 32))
    assert evaluate("vote.sync.any.pred %out, %a, -1;", votes, out="?").all()
    assert not evaluate("vote.sync.all.pred %out, %a, -1;", votes, out="?").any()


def test_match_and_elect():
    keys = (np.arange(64) % 5).astype("u4")
    expected = [sum(1 << k for k in range(32) if keys[f + k] == keys[i]) for i, f in enumerate(FIRST)]
    got = evaluate("match.any.sync.b32 %out, %a, -1;", keys, out="u4")
    np.testing.assert_array_equal(got, np.array(expected, "u4"))
    elected = evaluate("elect.sync %r9|%out, -1;", keys, out="?")
    assert elected.reshape(2, 32).sum(1).tolist() == [1, 1]


def test_part_of_a_warp_is_refused():
    with pytest.raises(UnsupportedPtx, match="membermask"):
        evaluate("redux.sync.add.s32 %out, %a, 255;", VALUES.view("i4"), out="i4")
    body = "setp.lt.u32 %p1, %r0, 5;\n@%p1 shfl.sync.idx.b32 %r1, %r0, 0, 31, -1;"
    with pytest.raises(PtxError, match="part of a warp"):
        run(body)


def test_divergent_threads_reconverge():
    """Each thread loops its own number of times; afterwards the whole warp shuffles."""
    body = """
    mov.b32 %r1, 0;
    mov.b32 %r2, 0;
    $top:
    add.s32 %r1, %r1, %r2;
    add.s32 %r2, %r2, 1;
    setp.le.u32 %p1, %r2, %r0;
    @%p1 bra $top;
    setp.lt.u32 %p2, %r0, 9;
    @!%p2 bra $else;
    add.s32 %r1, %r1, 1000;
    bra.uni $end;
    $else:
    add.s32 %r1, %r1, 2000;
    $end:
    shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;
    mad.wide.u32 %rd9, %r0, 4, %rd0;
    st.global.b32 [%rd9], %r3;
    """
    out = torch.zeros(64, dtype=torch.int32)
    run(body, out)
    own = [t * (t + 1) // 2 + (1000 if t < 9 else 2000) for t in range(64)]
    assert out.tolist() == [own[t ^ 1] for t in range(64)]


def test_threads_may_leave_early():
    body = """
    setp.ge.u32 %p1, %r0, 40;
    @%p1 ret;
    mad.wide.u32 %rd9, %r0, 4, %rd0;
    st.global.b32 [%rd9], %r0;
    """
    out = torch.full((64,), -1, dtype=torch.int32)
    run(body, out)
    assert out.tolist() == [t if t < 40 else -1 for t in range(64)]


def test_threads_at_different_barriers():
    body = """
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra $other;
    bar.sync 0;
    ret;
    $other:
    bar.sync 0;
    """
    with pytest.raises(PtxError, match="different barriers"):
        run(body)


def test_endless_loop_ends(monkeypatch):
    monkeypatch.setattr("tests.virtual_gpu.cta.MAX_INSTRUCTIONS", 1000)
    with pytest.raises(PtxError, match="more than 1000 instructions"):
        run("$top:\nbra $top;")
