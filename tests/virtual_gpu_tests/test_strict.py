"""What the emulator does not know it must refuse, naming the instruction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.virtual_gpu import PtxError, UnsupportedPtx, launch
from tests.virtual_gpu.parse import parse
from tests.virtual_gpu_tests.snippets import evaluate, kernel, run

REFUSED = [
    pytest.param("frobnicate.b32 %r1, %r0;", "opcode", id="unknown opcode"),
    pytest.param("add.sat.s32 %r1, %r0, %r0;", "modifiers", id="unknown modifier"),
    pytest.param("add.cc.s32 %r1, %r0, %r0;", "modifiers", id="carry out"),
    pytest.param("add.rz.f32 %r1, %r0, %r0;", "modifiers", id="another rounding"),
    pytest.param("add.u16x2 %r1, %r0, %r0;", "modifiers", id="unknown type"),
    pytest.param("cvt.rn.satfinite.e4m3x2.f32 %rs1, %r0, %r0;", "modifiers", id="float8"),
    pytest.param("cvt.rz.bf16.f32 %rs1, %r0;", "modifiers", id="another conversion"),
    pytest.param("ld.global.nc.b32 %r1, [%rd0];", "modifiers", id="non-coherent load"),
    pytest.param("ld.local.b32 %r1, [%rd0];", "modifiers", id="spilled register"),
    pytest.param("ld.global.v4.b32 {%r1, %r2}, [%rd0];", "vector length", id="short vector"),
    pytest.param("ld.global.L2::cache_hint.b32 %r1, [%rd0];", "number of operands", id="no policy"),
    pytest.param("atom.global.cta.acq_rel.add.u32 %r1, [%rd0], 1;", "modifiers", id="CTA scope"),
    pytest.param("atom.global.gpu.acq_rel.inc.u32 %r1, [%rd0], 1;", "modifiers", id="atomic inc"),
    pytest.param("bar.sync 1, 64;", "named barrier", id="named barrier"),
    pytest.param("bar.arrive 0, 64;", "modifiers", id="split barrier"),
    pytest.param("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 %r1, %r1, %r1;", "modifiers", id="tf32 wgmma"),
    pytest.param(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 %r1, %r1, %r1, %r1;",
        "modifiers",
        id="tf32",
    ),
    pytest.param("add.s32 %r1, %r0, %rd0;", "register %rd0 as .s32", id="wide register"),
    pytest.param("add.s64 %rd1, %rd0, %r0;", "register %r0 as .s64", id="narrow register"),
    pytest.param("add.s32 %rd1, %r0, %r0;", "register %rd1 for a .s32 result", id="wide result"),
    pytest.param("add.s32 %r1, %r0;", "operands", id="missing operand"),
    pytest.param("add.s32 %r1, %r0, %r0, %r0;", "operands", id="extra operand"),
    pytest.param("add.f32 %r1, %r0, 1;", "as .f32", id="integer literal as float"),
    pytest.param("add.s32 %r1, %r0, 0f3F800000;", "as .s32", id="float literal as integer"),
    pytest.param("mov.u32 %r1, 0xffffffff00000000;", "as .u32", id="literal not sign-extended"),
    pytest.param("add.s32 %r1, %r0, 8589934592;", "as .s32", id="literal too large"),
    pytest.param("mov.u32 %r1, %clock;", "special register", id="special register"),
    pytest.param("mov.u32 %r1, %r999;", "special register", id="undeclared register"),
    pytest.param("bra $nowhere;", "label", id="missing label"),
    pytest.param(".local .b8 stack[16];", "directive", id="local memory"),
    pytest.param("ld.global.b32 %r1, [%rd0 + %rd1];", "operand form", id="indexed address"),
]


@pytest.mark.parametrize(("body", "reason"), REFUSED)
def test_refused(body, reason):
    with pytest.raises(UnsupportedPtx, match=reason.replace(".", r"\.")) as raised:
        run(body, torch.zeros(4))
    assert reason == "operands" or body.split(";")[0].split()[-1] in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(".reqntid 64", "", id="no thread count"),
        pytest.param(".reqntid 64", ".reqntid 48", id="half a warp"),
        pytest.param("global_smem[]", "global_smem[64]", id="static shared array"),
        pytest.param(".param .u64 .ptr .global .align 1 p0", ".param .align 8 .b8 p0[64]", id="array"),
        pytest.param(".visible .entry", ".func f() { ret; }\n.visible .entry", id="function"),
    ],
)
def test_refused_module(old, new):
    text = kernel("", 1)
    assert old in text
    with pytest.raises(UnsupportedPtx):
        launch(text.replace(old, new), (1,), [torch.zeros(4)], shared=0)


def test_register_that_nobody_wrote():
    with pytest.raises(PtxError, match=r"%r5 is read but was never written: add.s32"):
        run("add.s32 %r1, %r0, %r5;")
    with pytest.raises(PtxError, match=r"%p4 is read but was never written"):
        run("selp.b32 %r1, 1, 2, %p4;")
    with pytest.raises(PtxError, match=r"%p3 is read but was never written"):
        run("@%p3 mov.b32 %r1, 0;")
    with pytest.raises(PtxError, match=r"%rd7 is read but was never written"):
        run("st.global.b32 [%rd7], %r0;")


def test_half_that_nobody_wrote_may_be_packed_but_is_garbage():
    body = "mov.b64 %rd7, {%r0, %r9};\nmov.b64 {%r5, %out}, %rd7;"
    assert set(evaluate(body, np.zeros(32, "u4"), out="u4").tolist()) == {0xFFBADBAD}


def test_register_written_by_some_threads_is_poison_for_the_others():
    body = "setp.lt.u32 %p1, %r0, 32;\n@%p1 mov.b32 %r1, 5;\nmov.b32 %out, %r1;"
    got = evaluate(body, np.zeros(64, "u4"), out="u4")
    assert got.tolist() == [5] * 32 + [0xFFFFFFFF] * 32


def test_arguments_must_fit_the_parameters():
    text = kernel("", 1).replace(".param .u64 .ptr .global .align 1 p0", ".param .u32 p0")
    text = text.replace("ld.param.b64 %rd0, [p0];", "")
    launch(text, (1,), [-5], shared=0)
    with pytest.raises(UnsupportedPtx, match="argument"):
        launch(text, (1,), [2**33], shared=0)
    with pytest.raises(UnsupportedPtx, match="parameter"):
        launch(text, (1,), [0.5], shared=0)
    with pytest.raises(UnsupportedPtx, match="3 arguments for 1"):
        launch(text, (1,), [1, 2, 3], shared=0)


def test_inner_scopes_have_their_own_registers():
    body = """
    .reg .b32 x;
    mov.b32 x, 1;
    { .reg .b32 x; mov.b32 x, 2; }
    { .reg .pred x; setp.eq.u32 x, %r0, 0; }
    add.s32 %out, x, 0;
    """
    assert (evaluate(body, np.zeros(32, "i4"), out="i4") == 1).all()


def test_parse_reports_the_kernel():
    parsed = parse(kernel("$a:\nadd.s32 %r1, %r0, -7;\nbra $a;", 2, threads=96))
    assert (parsed.name, parsed.threads, parsed.params) == (
        "snippet",
        96,
        [("p0", "u64"), ("p1", "u64")],
    )
    assert parsed.instructions[parsed.labels["$a"]].text == "add.s32 %r1, %r0, -7"
