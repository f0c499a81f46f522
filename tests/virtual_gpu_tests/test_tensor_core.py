"""ldmatrix, stmatrix and mma.sync against plain matrix algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.virtual_gpu import AccessError
from tests.virtual_gpu_tests.snippets import run

ROW_ADDRESS = """
and.b32 %r1, %r0, 31;
shl.b32 %r2, %r1, 4;
shr.u32 %r3, %r0, 5;
mad.lo.s32 %r4, %r3, 512, %r2;
add.s32 %r5, %r4, 1024;
"""
STORE_ROW = """
mad.wide.u32 %rd8, %r0, 16, %rd0;
ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd8];
st.shared.v4.b32 [%r5], {%r10, %r11, %r12, %r13};
bar.sync 0;
"""
LOAD_ROW = """
bar.sync 0;
ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r5];
mad.wide.u32 %rd9, %r0, 16, %rd1;
st.global.v4.b32 [%rd9], {%r10, %r11, %r12, %r13};
"""


def matrices(seed: int) -> torch.Tensor:
    """Four 8x8 matrices of 16-bit integers for each of two warps."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-999, 999, (2, 4, 8, 8), dtype=torch.int16, generator=generator)


@pytest.mark.parametrize("trans", [False, True], ids=["plain", "transposed"])
def test_ldmatrix(trans):
    """Lane 4g + t gets columns 2t and 2t + 1 of row g of each matrix."""
    suffix = ".trans" if trans else ""
    body = f"""
    {ROW_ADDRESS}{STORE_ROW}
    ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r5];
    mad.wide.u32 %rd9, %r0, 16, %rd1;
    st.global.v4.b32 [%rd9], {{%r20, %r21, %r22, %r23}};
    """
    source, out = matrices(0), torch.zeros(2, 32, 4, 2, dtype=torch.int16)
    run(body, source, out, shared=1024)
    expected = source.transpose(2, 3) if trans else source
    assert torch.equal(out.permute(0, 2, 1, 3).reshape(2, 4, 8, 8), expected)


@pytest.mark.parametrize("trans", [False, True], ids=["plain", "transposed"])
def test_stmatrix_is_the_inverse_of_ldmatrix(trans):
    suffix = ".trans" if trans else ""
    body = f"""
    {ROW_ADDRESS}{STORE_ROW}
    ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r5];
    stmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 [%r5], {{%r20, %r21, %r22, %r23}};
    {LOAD_ROW}
    """
    source, out = matrices(1), torch.zeros(2, 4, 8, 8, dtype=torch.int16)
    run(body, source, out, shared=1024)
    assert torch.equal(out, source)


def test_matrix_rows_must_be_aligned():
    body = ROW_ADDRESS + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r5+8];"
    with pytest.raises(AccessError, match="misaligned"):
        run(body, shared=2048)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)], ids=["bf16", "f16"])
def test_mma(name, dtype):
    """Fragments are laid out by hand here, from the tables of the PTX manual."""
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(2, 16, n, generator=generator).to(dtype) for n in (16, 8))
    c = torch.randn(2, 16, 8, generator=generator)
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    fragment_a = [a[:, g + 8 * (i // 2 % 2), 2 * t + i % 2 + 8 * (i // 4)] for i in range(8)]
    fragment_b = [b[:, 2 * t + i % 2 + 8 * (i // 2), g] for i in range(4)]
    fragment_c = [c[:, g + 8 * (i // 2), 2 * t + i % 2] for i in range(4)]
    packed = [torch.stack(f, -1).contiguous() for f in (fragment_a, fragment_b, fragment_c)]
    out = torch.zeros(2, 32, 4)
    body = f"""
    mad.wide.u32 %rd8, %r0, 16, %rd0;
    mad.wide.u32 %rd9, %r0, 8, %rd1;
    mad.wide.u32 %rd10, %r0, 16, %rd2;
    mad.wide.u32 %rd11, %r0, 16, %rd3;
    ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd8];
    ld.global.v2.b32 {{%r5, %r6}}, [%rd9];
    ld.global.v4.b32 {{%r7, %r8, %r9, %r10}}, [%rd10];
    mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32
        {{%r11, %r12, %r13, %r14}}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {{%r7, %r8, %r9, %r10}};
    st.global.v4.b32 [%rd11], {{%r11, %r12, %r13, %r14}};
    """
    run(body, *packed, out)
    expected = a.double() @ b.double() + c.double()
    for i in range(4):
        got = out[:, :, i].double()
        torch.testing.assert_close(got, expected[:, g + 8 * (i // 2), 2 * t + i % 2], atol=1e-5, rtol=1e-5)
