"""Bad arguments of suffix_attention: the error names the argument, and the cache is as it was."""

from __future__ import annotations

import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lsp_kernels import suffix_attention
from lsp_kernels._namespace import NAMESPACE
from tests.attention_cases import assert_same_bits, make_case
from tests.support import ints


def zeros(*shape: int, **options: object) -> torch.Tensor:
    return torch.zeros(*shape, **options)


# 6 tokens of two sequences, 4 heads of queries, 2 of keys, 8 slots
BAD = [
    ({"q": [1]}, TypeError, "q: expected a Tensor, got list"),
    ({"q": zeros(6, 4, 32, dtype=torch.int32)}, TypeError, "dtype of q: expected float32, bfloat16"),
    ({"k": zeros(6, 2, 32, dtype=torch.float16)}, TypeError, "dtype of k: expected torch.float32 as q, got"),
    ({"v_cache": zeros(2, 2, 8, 32, device="meta")}, ValueError, "device of v_cache: expected cpu, got meta"),
    ({"q": zeros(2, 3, 4, 32)}, ValueError, r"shape of q: expected \[T, Hq, D\] with cu_seqlens"),
    ({"cu_seqlens": None}, ValueError, r"shape of q: expected \[B, N, Hq, D\] without cu_seqlens"),
    ({"q": zeros(6, 4, 40)}, ValueError, "shape of q: expected a head dimension that is a multiple of 16"),
    ({"q": zeros(6, 4, 272)}, ValueError, "shape of q: expected a head dimension"),
    ({"q": zeros(6, 0, 32)}, ValueError, "shape of q: expected at least one head"),
    ({"k": zeros(6, 3, 32)}, ValueError, r"shape of k: expected \[6, Hkv, 32\] with Hkv a divisor of Hq = 4"),
    ({"k": zeros(5, 2, 32)}, ValueError, "shape of k"),
    ({"k": zeros(6, 0, 32)}, ValueError, "shape of k"),
    ({"k": zeros(6, 2, 64)}, ValueError, "shape of k"),
    ({"v": zeros(6, 1, 32)}, ValueError, r"shape of v: expected \[6, 2, 32\] as k, got \[6, 1, 32\]"),
    ({"k_cache": zeros(2, 8, 64, 32)}, ValueError, r"shape of k_cache: expected \[B, 2, S, 32\], got \[2, 8, 64, 32\]"),
    ({"k_cache": zeros(3, 2, 8, 32)}, ValueError, r"shape of k_cache: expected 2 rows, one for each sequence"),
    ({"slots": ints(0)}, ValueError, r"shape of slots: expected \[2\], got \[1\]"),
    ({"slots": ints(0, 2)}, ValueError, r"slots\[1\]: expected 0 to 1 \(the cache's rows\), got 2"),
    ({"slots": ints(1, 1)}, ValueError, r"slots\[1\]: expected a row of its own, got 1 as sequence 0"),
    ({"v_cache": zeros(2, 2, 9, 32)}, ValueError, r"shape of v_cache: expected \[2, 2, 8, 32\] as k_cache"),
    ({"k_cache": zeros(2, 2, 32, 8).mT}, ValueError, "strides of k_cache: expected the last dimension"),
    ({"q": zeros(6, 4, 64)[..., ::2]}, ValueError, "strides of q: expected the last dimension to be contiguous"),
    ({"cu_seqlens": torch.tensor([0, 2, 6])}, TypeError, "dtype of cu_seqlens: expected int32, got torch.int64"),
    ({"cu_seqlens": ints(0, 4, 2)}, ValueError, r"cu_seqlens: expected non-decreasing borders.*got \[0, 4, 2\]"),
    ({"cu_seqlens": ints(0, 2, 7)}, ValueError, "cu_seqlens: expected non-decreasing borders from 0 to at most 6"),
    ({"prefix_lens": ints(1)}, ValueError, r"shape of prefix_lens: expected \[2\], got \[1\]"),
    ({"prefix_lens": ints(0, 9)}, ValueError, r"prefix_lens\[1\]: expected 0 to 8 \(the cache's capacity\), got 9"),
    ({"prefix_lens": ints(-1, 0)}, ValueError, r"prefix_lens\[0\]: expected 0 to 8"),
    ({"append_lens": ints(3, 0)}, ValueError, r"append_lens\[0\]: expected 0 to 2 \(2 tokens.*7 free in.*\), got 3"),
    ({"append_lens": ints(0, 4)}, ValueError, r"append_lens\[1\]: expected 0 to 3 \(4 tokens.*3 free in.*\), got 4"),
    ({"append_lens": ints(0, -1)}, ValueError, r"append_lens\[1\]: expected 0"),
    ({"scale": "1"}, TypeError, "scale: expected a number, got str"),
    ({"scale": math.nan}, ValueError, "scale: expected a finite number, got nan"),
    ({"workspace": 3}, TypeError, "workspace: expected a Workspace, got int"),
    ({"out": zeros(6, 4, 16)}, ValueError, r"shape of out: expected \[6, 4, 32\], got \[6, 4, 16\]"),
    ({"out": zeros(6, 4, 32).half()}, TypeError, "dtype of out: expected torch.float32, got torch.float16"),
    ({"out": zeros(4, 6, 32).transpose(0, 1)}, ValueError, "strides of out: expected contiguous"),
    ({"out": zeros(6, 4, 32, requires_grad=True)}, ValueError, "out: expected a tensor that can be written, got"),
    ({"out": [1]}, TypeError, "out: expected a Tensor, got list"),
]  # fmt: skip


@pytest.mark.abuse("operators")
@pytest.mark.parametrize(
    ("wrong", "error", "message"), BAD, ids=[f"{next(iter(w))} {i}" for i, (w, _, _) in enumerate(BAD)]
)
def test_is_refused_and_writes_nothing(wrong: dict, error: type[Exception], message: str) -> None:
    case = make_case([2, 4], [1, 5], [2, 3], heads=(4, 2), slack=0)
    before = case.with_fresh_cache()
    with pytest.raises(error, match=f"Invalid {message}"):
        suffix_attention(**(vars(case) | wrong))
    assert_same_bits(case.k_cache, before.k_cache)
    assert_same_bits(case.v_cache, before.v_cache)


@pytest.mark.parametrize("name", ["q", "k", "k_cache"])
def test_an_output_in_the_memory_of_an_operand_is_refused(name: str) -> None:
    case = make_case([2, 4], [1, 5], [2, 3], heads=(2, 2))
    out = getattr(case, name).flatten()[: case.q.numel()].view(case.q.shape)
    with pytest.raises(ValueError, match=f"Invalid out: expected memory of its own, got memory of {name}"):
        case.run(suffix_attention, out=out)


def test_allocates_its_output_and_nothing_else() -> None:
    case = make_case([64], [1000], [64], heads=(4, 4), size=64)
    case.run(suffix_attention)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        out = case.run(suffix_attention)
    (event,) = [event for event in run.key_averages() if event.key == f"{NAMESPACE}::suffix_attention"]
    assert event.cpu_memory_usage == out.numel() * out.element_size()
