"""Compiling without a GPU: what `Compiled` reports, fingerprints, and errors that help."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import triton
import triton.language as tl

from lsp_kernels.triton import aot
from lsp_kernels.triton.aot import TARGETS, compile_kernel, fingerprint, lower_kernel, occupancy
from tests.virtual_gpu_tests.sample import ALIGNED, CONSTEXPRS, SIGNATURE, compiled, row_max_kernel


@pytest.mark.parametrize("target", TARGETS)
def test_every_target(target):
    kernel = compiled(target, BLOCK=1024)
    assert 8 <= kernel.registers <= 128
    assert kernel.spills == 0
    assert 0 < kernel.shared <= kernel.target.shared_limit
    assert kernel.widest_load == 128
    assert compiled(target, aligned=(), BLOCK=1024).widest_load < 128
    assert kernel.count("atom.", "global_atomic", "buffer_atomic") == 1
    assert kernel.count("bar.sync", "s_barrier") >= 4
    assert 0 < kernel.occupancy <= 1
    assert kernel.text
    assert kernel.binary
    assert "tt.func" in kernel.ttir


@triton.jit
def greedy_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    o = tl.arange(0, N)
    acc = tl.load(x_ptr + o)
    kept = acc
    for i in range(n):
        acc = acc * tl.load(x_ptr + i * N + o) + kept
    tl.store(out_ptr + o, acc + kept)


def test_spills_show_on_nvidia():
    """64 values a thread, twice, do not fit into 32 registers."""
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    options = {"num_warps": 1, "aligned": ("x_ptr", "out_ptr")}
    tight = compile_kernel(greedy_kernel, "sm_90", signature, {"N": 2048}, maxnreg=32, **options)
    assert tight.registers <= 32
    assert tight.resources.stack > 0
    assert tight.spills > 0
    assert compile_kernel(greedy_kernel, "sm_90", signature, {"N": 2048}, **options).spills == 0


@pytest.mark.parametrize("key", ["vgpr_spill_count", "private_segment_fixed_size"])
def test_spills_show_on_amd(key):
    kernel = compiled("gfx942")
    spilled = kernel.text.replace(f".{key}: 0", f".{key}: 12")
    assert spilled != kernel.text
    assert replace(kernel, text=spilled).spills == 12


def test_load_widths():
    widths = {
        "\tld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];": 128,
        "\t@%p1 ld.global.L1::evict_first.L2::cache_hint.v8.b32 {%r1}, [%rd1], %rd2;": 256,
        "\tld.global.b16 %rs1, [%rd1];": 16,
        "\tcp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;": 128,
        "\tld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r9];": 0,
        "\tld.param.b64 %rd1, [x];": 0,
        "\tglobal_load_dwordx4 v[6:9], v[4:5], off": 128,
        "\tbuffer_load_dword v6, v4, s[0:3], 0 offen": 32,
        "\tbuffer_load_ushort v6, v4, s[0:3], 0 offen": 16,
        "\tglobal_load_b128 v[6:9], v[4:5], off": 128,
        "\tglobal_load_u16 v6, v[4:5], off": 16,
        "\tglobal_load_d16_b16 v6, v[4:5], off": 16,
        "\tglobal_load_d16_hi_b16 v6, v[4:5], off": 16,
        "\tglobal_load_short_d16_hi v6, v[4:5], off": 16,
        "\tglobal_load_ubyte v6, v[4:5], off": 8,
        "\tglobal_load_i8 v6, v[4:5], off": 8,
        "\ts_load_dwordx4 s[0:3], s[4:5], 0x0": 0,
    }
    assert {line: aot.facts.load_bits(line) for line in widths} == widths


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "expected"),
    [
        pytest.param("sm_90", 32, 0, 4, 1.0, id="full"),
        pytest.param("sm_90", 64, 0, 8, 0.5, id="registers"),
        pytest.param("sm_90", 65, 0, 8, 0.375, id="register granularity"),
        pytest.param("sm_90", 32, 100 * 1024, 8, 0.25, id="shared memory"),
        pytest.param("sm_90", 32, 228 * 1024, 8, 0.0, id="does not fit"),
        pytest.param("sm_86", 32, 0, 1, 16 / 48, id="blocks"),
        pytest.param("gfx942", 64, 0, 4, 1.0, id="gfx942"),
        pytest.param("gfx942", 128, 64 * 1024, 4, 4 / 32, id="gfx942 shared"),
        pytest.param("gfx1100", 96, 0, 4, 1.0, id="gfx1100"),
        pytest.param("gfx1100", 97, 0, 4, 0.75, id="gfx1100 granularity"),
    ],
)
def test_occupancy(target, registers, shared, warps, expected):
    assert occupancy(TARGETS[target], registers, shared, warps) == expected


def lowered(**constexprs: object) -> str:
    return lower_kernel(row_max_kernel, "sm_90", SIGNATURE, CONSTEXPRS | constexprs, num_warps=4, aligned=ALIGNED)


def test_fingerprint_follows_the_code():
    text = lowered()
    assert fingerprint([text]) == fingerprint([lowered()])
    assert fingerprint([text]) != fingerprint([lowered(BLOCK=512)])
    assert fingerprint([text]) != fingerprint([text, text])


def test_fingerprint_ignores_locations(tmp_path):
    """The same kernel three lines further down in a file of another name."""
    source = textwrap.dedent("""
        import triton
        import triton.language as tl

        @triton.jit
        def add_one(x_ptr, n, BLOCK: tl.constexpr):
            o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + o, mask=o < n)
            tl.store(x_ptr + o, x + 1.0, mask=o < n)
        """)
    prints = set()
    for name, text in (("one.py", source), ("two.py", "# a\n# b (c\n\n" + source)):
        (tmp_path / name).write_text(text)
        namespace: dict = {"__name__": name, "__file__": str(tmp_path / name)}
        exec(compile(text, str(tmp_path / name), "exec"), namespace)
        ttir = lower_kernel(
            namespace["add_one"],
            "sm_90",
            {"x_ptr": "*fp32", "n": "i32"},
            {"BLOCK": 64},
            num_warps=1,
        )
        assert name in ttir
        prints.add(fingerprint([ttir]))
    assert len(prints) == 1


def test_fingerprint_follows_triton(monkeypatch):
    before = fingerprint(["module {}"])
    monkeypatch.setattr(triton, "__version__", "99.0")
    assert fingerprint(["module {}"]) != before


def test_lowering_equals_the_first_stage_of_compiling():
    kernel = compile_kernel(row_max_kernel, "sm_90", SIGNATURE, CONSTEXPRS, num_warps=4, aligned=ALIGNED)
    assert fingerprint([kernel.ttir]) == fingerprint([lowered()])


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        pytest.param(
            {"target_name": "sm_75"}, ValueError, "Invalid target: expected.*sm_80, sm_86.*sm_75", id="target"
        ),
        pytest.param({"constexprs": {}}, ValueError, "expected also BLOCK", id="missing"),
        pytest.param({"signature": SIGNATURE | {"y": "i32"}}, ValueError, "got also y", id="extra"),
        pytest.param({"aligned": ("BLOCK",)}, ValueError, "expected run-time arguments, got BLOCK", id="aligned"),
        pytest.param({"fn": print}, TypeError, "@triton.jit function", id="function"),
    ],
)
def test_errors(change, error, match):
    call = {
        "fn": row_max_kernel,
        "target_name": "sm_90",
        "signature": SIGNATURE,
        "constexprs": CONSTEXPRS,
        "num_warps": 4,
    }
    with pytest.raises(error, match=match):
        compile_kernel(**(call | change))


def test_import_needs_no_triton():
    code = textwrap.dedent("""
        import sys
        sys.modules["triton"] = None
        from lsp_kernels.triton import aot
        assert aot.occupancy(aot.TARGETS["sm_90"], 64, 0, 8) == 0.5
        try:
            aot.fingerprint([])
        except ImportError as error:
            assert "pip install 'lsp-kernels[triton]'" in str(error)
        else:
            raise AssertionError
        """)
    subprocess.run([sys.executable, "-c", code], check=True)
