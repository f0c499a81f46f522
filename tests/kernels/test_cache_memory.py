"""Memory of the caches of suffix_attention: what may be shared, and that autograd notices writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lsp_kernels import suffix_attention
from tests.attention_cases import AttentionCase, assert_same_bits, check_attention, make_case
from tests.support import OPERATORS


def case_with(change: Callable[[AttentionCase], None], appends: list[int] | None = None) -> AttentionCase:
    case = make_case([3, 4], [2, 5], [3, 2] if appends is None else appends, heads=(2, 2))
    change(case)
    return case


def expanded(case: AttentionCase) -> None:
    case.k_cache = case.k_cache[:1].expand(2, -1, -1, -1)


def overlapping_slots(case: AttentionCase) -> None:
    case.v_cache = torch.zeros(10_000).as_strided(case.v_cache.shape, (4000, 1000, 16, 1))


def one_cache(case: AttentionCase) -> None:
    case.v_cache = case.k_cache


def one_slot_further(case: AttentionCase) -> None:
    both = torch.zeros(2, 2, case.k_cache.size(2) + 1, 32)
    case.k_cache, case.v_cache = both[:, :, :-1], both[:, :, 1:]


def keys_in_the_cache(case: AttentionCase) -> None:
    case.k = case.k_cache[0].transpose(0, 1)[:7]


def queries_in_the_cache(case: AttentionCase) -> None:
    case.q = case.v_cache[0].transpose(0, 1)[:7]


SHARED = [
    (expanded, "strides of k_cache: expected an element of its own"),
    (overlapping_slots, "strides of v_cache: expected an element of its own"),
    (one_cache, "v_cache: expected memory of its own, got memory of k_cache"),
    (one_slot_further, "v_cache: expected memory of its own, got memory of k_cache"),
    (keys_in_the_cache, "k: expected memory outside of the caches, got memory of k_cache"),
    (queries_in_the_cache, "q: expected memory outside of the caches, got memory of v_cache"),
]


@pytest.mark.parametrize(("change", "message"), SHARED, ids=[change.__name__ for change, _ in SHARED])
def test_shared_memory_is_refused_by_name_and_not_written(change, message: str) -> None:
    case = case_with(change)
    before = case.k_cache.clone(), case.v_cache.clone()
    with pytest.raises(ValueError, match=f"Invalid {message}"):
        case.run(suffix_attention)
    with pytest.raises(RuntimeError, match=f"Invalid {message}"):
        OPERATORS.suffix_attention(*list(vars(case).values())[:-2], None, 1.0, None, None)
    assert_same_bits(case.k_cache, before[0])
    assert_same_bits(case.v_cache, before[1])


@pytest.mark.parametrize("change", [expanded, one_cache, queries_in_the_cache])
def test_memory_that_is_only_read_may_be_shared(change) -> None:
    case = case_with(change)
    case.append_lens = None
    for cache in (case.k_cache, case.v_cache):
        cache.untyped_storage().copy_(torch.randn(cache.untyped_storage().nbytes() // 4).untyped_storage())
    check_attention(suffix_attention, case)


@pytest.mark.parametrize("dim", range(5))
def test_slices_of_one_block_are_served(dim: int) -> None:
    case = make_case([3, 4], [2, 5], [3, 2], heads=(2, 2))
    shape = list(case.k_cache.shape)
    block = torch.empty([*shape[:dim], 2, *shape[dim:]] if dim < 4 else [*shape[:3], 2 * shape[3]])
    k_cache, v_cache = block.unbind(dim) if dim < 4 else block.chunk(2, dim=-1)
    case.k_cache, case.v_cache = k_cache.copy_(case.k_cache), v_cache.copy_(case.v_cache)
    before = block.clone()
    case.run(suffix_attention)
    assert not torch.equal(block.nan_to_num(), before.nan_to_num())


def test_writes_are_visible_to_autograd() -> None:
    case = make_case([3], [2], [3])
    weight = torch.ones((), requires_grad=True)
    product = (weight * case.k_cache.nan_to_num_()).sum()
    case.run(suffix_attention)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_pass_that_writes_nothing_is_not_a_write() -> None:
    case = make_case([3], [2], None)
    before = case.k_cache._version, case.v_cache._version
    case.run(suffix_attention)
    assert (case.k_cache._version, case.v_cache._version) == before


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_leaf_that_requires_a_gradient_is_refused(name: str, dtype: torch.dtype) -> None:
    case = make_case([3], [2], [3], dtype=dtype)
    getattr(case, name).requires_grad_()
    with pytest.raises(ValueError, match=f"Invalid {name}: expected a tensor that can be written, got a leaf"):
        case.run(suffix_attention)
    case.append_lens = None
    assert not case.run(suffix_attention).requires_grad


def test_inference_tensors_are_served() -> None:
    with torch.inference_mode():
        case = make_case([3], [2], [3])
    case.run(suffix_attention)
    with torch.inference_mode():
        make_case([3], [2], [3]).run(suffix_attention)


def test_an_output_that_is_no_leaf_is_written_and_autograd_sees_it() -> None:
    case = make_case([3], [2], None)
    out = torch.zeros(case.q.shape, requires_grad=True) * 1.0
    before = out._version
    case.run(suffix_attention, out=out)
    assert out._version > before
    assert_same_bits(out.detach(), case.run(suffix_attention))
