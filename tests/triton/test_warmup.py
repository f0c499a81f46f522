"""Warming up attention compiles what later calls need: Triton is asked which kernels their launches would use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lsp_kernels.triton import attention
from tests.attention_cases import AttentionCase, make_case
from tests.triton.launches import Compilation, captured


def compilations(call: Any, case: AttentionCase, return_lse: bool = False, shift: int = 0) -> set[Compilation]:
    """What a call needs; lengths and slots lie `shift` elements behind an aligned address."""
    lengths = (case.cu_seqlens, case.prefix_lens, case.append_lens, case.slots)
    index = [None if x is None else moved(x, shift) for x in lengths]
    lse = moved(torch.empty(case.q.shape[:-1]), shift) if return_lse else None
    with captured("sm_90") as launched:
        caches = (case.k_cache, case.v_cache)
        call(case.q, case.k, case.v, *caches, *index, 1.0, None, None, torch.empty_like(case.q), lse)
    return set(launched)


def moved(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    """A copy that begins `shift` elements behind an aligned address."""
    room = torch.empty(tensor.numel() + shift, dtype=tensor.dtype)
    return room[shift:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("slots", [None, [1, 0]])
@pytest.mark.parametrize("appends", [None, [1, 1]])
def test_attention_needs_no_kernel_that_was_not_warmed_up(
    appends: list[int] | None, slots: list[int] | None, return_lse: bool
) -> None:
    """With any number of tokens, any capacity, and lengths that lie anywhere."""
    options: dict[str, Any] = {"heads": (4, 1), "slots": slots, "dtype": torch.bfloat16}
    warm = compilations(attention.warmup, make_case([3, 5], [4, 9], appends, **options), return_lse)
    assert len(warm) == 2 * 4  # with and without splits, four tiles
    used = set()
    for tokens in (1, 7, 16, 40, 1200):
        for slack in (3, 16, 9000):
            case = make_case([tokens, 1], [16, 7], appends, slack=slack, unused=tokens % 3, **options)
            used |= compilations(attention.suffix_attention_into, case, return_lse, shift=tokens % 4)
    assert used <= warm
    assert len(used) > 3


def test_addresses_of_another_divisibility_need_other_kernels() -> None:
    """As the docstring of `warmup_attention` says."""
    case = make_case([3, 5], [4, 9], None, heads=(4, 1))
    warm = compilations(attention.warmup, case)
    for name in ("q", "k", "v", "k_cache", "v_cache"):
        other = AttentionCase(**vars(case) | {name: moved(getattr(case, name), 1)})
        assert not compilations(attention.suffix_attention_into, other) & warm
