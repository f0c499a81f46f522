"""Blocks multiply by ours where it is faster, and by torch's elsewhere."""

import pytest
import torch
from torch.nn import functional as F

from lsp.models import linear
from lsp.models.linear import MOST_ROWS, Int8Linear, Linear, ours_is_faster


@pytest.fixture
def processor(monkeypatch):
    """Sets what is known of the processor."""

    def is_one_with(*, sixteen=(), mkl_is_slow=False):
        monkeypatch.setattr(linear, "_multiplies", lambda dtype: dtype in sixteen)
        monkeypatch.setattr(linear, "_leaves_avx512_unused", lambda: mkl_is_slow)
        monkeypatch.setattr(linear, "served_by_cpp", lambda: True)

    return is_one_with


@pytest.mark.parametrize("mkl_is_slow", [False, True])
def test_few_rows_in_float32_are_ours_and_more_where_torch_is_slow(processor, mkl_is_slow):
    processor(mkl_is_slow=mkl_is_slow)
    for rows, ours in ((1, False), (2, True), (MOST_ROWS, True), (MOST_ROWS + 1, mkl_is_slow)):
        assert ours_is_faster(torch.zeros(rows, 4)) is ours
        assert not ours_is_faster(torch.zeros(rows, 4).double())
        assert not ours_is_faster(torch.zeros(rows, 4, device="meta"))


@pytest.mark.parametrize("fast", [(), (torch.bfloat16,), (torch.bfloat16, torch.float16)], ids=str)
def test_16_bits_are_ours_unless_torch_has_instructions_for_them(processor, fast):
    processor(sixteen=fast)
    for dtype in (torch.bfloat16, torch.float16):
        for rows in (1, 16, MOST_ROWS + 1):
            assert ours_is_faster(torch.zeros(rows, 4, dtype=dtype)) is (dtype not in fast)


@pytest.mark.parametrize(
    ("text", "has_16", "mkl_is_slow"),
    [
        pytest.param("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx512f\n\nflags: avx512_fp16", False, True, id="AMD"),
        pytest.param("vendor_id\t: GenuineIntel\nflags\t\t: avx512f avx512_fp16\n\n", True, False, id="Intel"),
        pytest.param(None, False, False, id="no such file"),
    ],
)
def test_what_the_processor_has_is_read_from_linux(tmp_path, monkeypatch, text, has_16, mkl_is_slow):
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(linear, "Path", lambda _: file)
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    assert linear._multiplies.__wrapped__(torch.float16) is has_16
    assert linear._leaves_avx512_unused.__wrapped__() is mkl_is_slow


def test_without_the_extension_torch_multiplies(monkeypatch):
    monkeypatch.setattr(linear, "served_by_cpp", lambda: False)
    assert not ours_is_faster(torch.zeros(4, 4))
    assert not ours_is_faster(torch.zeros(4, 4).half())


@pytest.mark.parametrize("rows", [1, 16, MOST_ROWS + 1])
def test_both_give_the_same(rows):
    layer, x = Linear(40, 30).requires_grad_(False), torch.randn(rows, 40)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def test_scales_are_float32_whatever_the_default_is():
    torch.set_default_dtype(torch.float64)
    try:
        layer = Int8Linear(torch.nn.Linear(40, 30, bias=False))
    finally:
        torch.set_default_dtype(torch.float32)
    weight, x = torch.randn(30, 40), torch.randn(3, 40)
    layer.fill(slice(0, 30), weight)
    torch.testing.assert_close(layer(x), F.linear(x, weight), rtol=0.05, atol=0.1)
