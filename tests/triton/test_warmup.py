"""Warming up compiles what later calls need: Triton is asked which kernel each launch would use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from lsp_kernels.triton import attention, configs
from tests.attention_cases import AttentionCase, make_case

KERNEL = attention.attention_kernel
BINDER = create_function_from_signature(KERNEL.signature, KERNEL.params, make_backend(GPUTarget("cuda", 90, 32)))


class Recorder:
    """In place of the kernel: the specialisations and options of its launches."""

    def __init__(self) -> None:
        self.kernels: set[str] = set()

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        assert min(grid) > 0
        return self.launch

    def launch(self, *arguments: Any, **options: Any) -> None:
        _, specialisation, rest = BINDER(*arguments, **options)
        self.kernels.add(f"{specialisation} {rest}")


def record(call: Any, case: AttentionCase, return_lse: bool, shift: int = 0) -> set[str]:
    """The kernels that a call needs; lengths and slots lie `shift` elements behind an aligned address."""
    index = [
        None if x is None else moved(x, shift)
        for x in (case.cu_seqlens, case.prefix_lens, case.append_lens, case.slots)
    ]
    lse = moved(torch.empty(case.q.shape[:-1]), shift) if return_lse else None
    recorder, out = Recorder(), torch.empty_like(case.q)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "attention_kernel", recorder)
        patch.setattr(configs.attention, "device_of", lambda device: configs.device.Device("sm_90", 132))
        call(case.q, case.k, case.v, case.k_cache, case.v_cache, *index, 1.0, None, None, out, lse)
    return recorder.kernels


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
    """With any number of tokens and sequences, any capacity, and lengths that lie anywhere."""
    options: dict[str, Any] = {"heads": (4, 1), "slots": slots, "dtype": torch.bfloat16}
    warm = record(attention.warmup, make_case([3, 5], [4, 9], appends, **options), return_lse)
    assert len(warm) == 2 * 4  # with and without splits, four tiles
    used = set()
    for tokens in (1, 7, 16, 40, 1200):
        for slack in (3, 16, 9000):
            case = make_case([tokens, 1], [16, 7], appends, slack=slack, unused=tokens % 3, **options)
            used |= record(attention.suffix_attention_into, case, return_lse, shift=tokens % 4)
    assert used <= warm
    assert len(used) > 3


def test_addresses_and_strides_of_another_divisibility_need_other_kernels() -> None:
    """As the docstring of `warmup_attention` says."""
    case = make_case([3, 5], [4, 9], None, heads=(4, 1))
    warm = record(attention.warmup, case, False)
    for name in ("q", "k", "v", "k_cache", "v_cache"):
        other = AttentionCase(**vars(case) | {name: moved(getattr(case, name), 1)})
        assert not record(attention.suffix_attention_into, other, False) & warm
