"""Warming up attention or a block compiles what later calls need: Triton is asked which kernels they would use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lsp_kernels.triton import attention, block
from lsp_kernels.triton.warmup import compile_block
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


Block = tuple[torch.Tensor, ...]


def block_operands(tokens: int, dtype: torch.dtype, gap: int, norms: bool = True) -> Block:
    """Rows, a weight, heads of a fused projection, gates, perhaps weights of heads. With a gap tokens are unaligned."""

    def rows(size: int) -> torch.Tensor:
        return moved(torch.zeros(tokens, size + gap, dtype=dtype), gap)[:, :size]

    q, k, _ = rows(4 * 32).unflatten(1, (4, 32)).split([2, 1, 1], dim=1)
    weights = (torch.ones(32, dtype=dtype), torch.ones(32, dtype=dtype)) if norms else (None, None)
    return rows(48), torch.ones(48, dtype=dtype), q, k, rows(2 * 80), *weights


def block_compilations(operands: Block) -> set[Compilation]:
    x, weight, q, k, gate_up, *norms = operands
    with captured("sm_90") as launched:
        block.add_norm(x, None, weight, 1e-5)
        block.add_norm(x, moved_like(x), weight, 1e-6)
        block.rotate_(q, k, *torch.zeros(2, len(q), 16), *norms, 1e-6)
        block.silu_mul(gate_up)
    return set(launched)


def moved_like(x: torch.Tensor) -> torch.Tensor:
    """Another tensor that lies as x does."""
    shift = x.data_ptr() % 16 // x.element_size()
    return torch.zeros(shift + x.stride(0) * len(x), dtype=x.dtype)[shift:].as_strided(x.shape, x.stride())


@pytest.mark.parametrize("gap", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("norms", [True, False], ids=["norms of heads", "plain heads"])
def test_a_block_needs_no_kernel_that_was_not_warmed_up(norms: bool, gap: int) -> None:
    """With any number of tokens; other dtypes, norms and strides need others."""
    with captured("sm_90") as launched:
        compile_block(*block_operands(3, torch.bfloat16, gap, norms))
    warm = set(launched)
    assert len(warm) == 4
    for tokens in (2, 16, 700, *([] if gap else [1])):  # torch gives a single token the strides of an aligned one
        assert block_compilations(block_operands(tokens, torch.bfloat16, gap, norms)) == warm
    for other in ((torch.half, gap, norms), (torch.bfloat16, 1 - gap, norms), (torch.bfloat16, gap, not norms)):
        assert block_compilations(block_operands(3, *other)) != warm


def test_addresses_of_another_divisibility_need_other_kernels() -> None:
    """As the docstring of `warmup_attention` says."""
    case = make_case([3, 5], [4, 9], None, heads=(4, 1))
    warm = compilations(attention.warmup, case)
    for name in ("q", "k", "v", "k_cache", "v_cache"):
        other = AttentionCase(**vars(case) | {name: moved(getattr(case, name), 1)})
        assert not compilations(attention.suffix_attention_into, other) & warm
