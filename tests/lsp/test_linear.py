"""Blocks multiply by ours where it is faster, and by torch's elsewhere."""

import pytest
import torch
from torch.nn import functional as F

from lsp.models import linear
from lsp.models.linear import MOST_ROWS, Int8Linear, Linear, ours_is_faster


@pytest.fixture(params=[False, True], ids=["without products of 16 bits", "with them"])
def sixteen(request, monkeypatch):
    monkeypatch.setattr(linear, "_multiplies_16_bits", lambda: request.param)
    monkeypatch.setattr(linear, "served_by_cpp", lambda: True)
    return request.param


def test_few_rows_in_float32_and_slow_16_bits_are_ours(sixteen):
    for rows, ours in ((1, False), (2, True), (MOST_ROWS, True), (MOST_ROWS + 1, False)):
        assert ours_is_faster(torch.zeros(rows, 4)) is ours
        assert ours_is_faster(torch.zeros(rows, 4).bfloat16()) is not sixteen
        assert not ours_is_faster(torch.zeros(rows, 4).double())
        assert not ours_is_faster(torch.zeros(rows, 4, device="meta"))


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
