"""The drop-ins against the formulas that they replace: one step over 64 masked positions, everything but the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bench.limits import read_bytes
from bench.ratios import LIMIT, OURS, Report, interleave
from bench.sizes import sized
from bench.support import softmax_confidence
from lsp.integrations import dinfer, dream, fast_dllm, llada
from lsp_kernels import PrefixRule

DTYPES = [torch.float32, torch.bfloat16]
ROWS, SIZE, MASK, EOS = sized((64, 126464, 126336, 126081), tiny=(8, 700, 690, 680))
FLOOR = PrefixRule.guarded().floor


def transfer(logits: Tensor, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Fast-dLLM, LLaDA: the most confident masks of every row."""
    tokens, p = softmax_confidence(logits)
    masked = x == MASK
    order = torch.topk(torch.where(masked, p, -torch.inf), count, dim=1).indices
    return torch.where(masked, tokens, x), torch.zeros_like(masked).scatter(1, order, True)


def threshold_step(logits: Tensor, x: Tensor) -> Tensor:
    """dInfer: every mask above the threshold, and always the most confident one."""
    tokens, p = softmax_confidence(logits)
    p = torch.where((x == MASK) & (tokens != MASK), p, -torch.inf)
    return torch.where(p >= (p.amax(1, keepdim=True) - 1e-5).clamp(max=0.9), tokens, x)


def prefix_step(logits: Tensor, x: Tensor) -> Tensor:
    """The rule that our drop-ins follow, written out: the masks up to the first whose margin is below the floor."""
    top, tokens = torch.topk(logits.float(), 2)
    sure = (top[..., 0] - top[..., 1] >= FLOOR).int().cumprod(1).bool()
    return torch.where(sure, tokens[..., 0], x)


def dream_step(logits: Tensor, x: Tensor) -> Tensor:
    """Dream at its cheapest, ``maskgit_plus``: the rows of the masks gathered, a softmax in the dtype of the model."""
    p, tokens = torch.softmax(logits[x == MASK], dim=-1).max(dim=-1)
    return tokens[torch.topk(p, 1).indices]


def canvas() -> Tensor:
    return torch.full((1, ROWS), MASK)


def sharp(dtype: torch.dtype, least: float = 6.0) -> Tensor:
    """Logits of masks: the best one falls from 25 to `least` from left to right, all others are below about 5."""
    logits = torch.randn(1, ROWS, SIZE)
    logits[..., MASK] = -50.0
    logits[0, torch.arange(ROWS), SIZE // ROWS * torch.arange(ROWS)] = torch.linspace(25.0, least, ROWS)
    return logits.to(dtype)


def measure(
    benchmark, report: Report, case: str, logits: Tensor, ours: Callable[[], object], formula: Callable[[], object]
) -> None:
    times = interleave({LIMIT: lambda: read_bytes(logits), OURS: ours}, rounds=31)
    times |= interleave({"its formula": formula, "float64 softmax": lambda: softmax_confidence(logits)}, rounds=5)
    report.compare("a step of a drop-in", case, times, over=LIMIT)
    report.target(f"{case}, its formula / ours", times["its formula"] / times[OURS], at_least=4)
    report.target(f"{case}, float64 softmax / ours", times["float64 softmax"] / times[OURS], at_least=10)
    benchmark.extra_info.update(times)
    benchmark.pedantic(ours, rounds=5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def bench_get_transfer_index(benchmark, report: Report, dtype: torch.dtype) -> None:
    logits, x = sharp(dtype), canvas()
    count, mask_index = torch.tensor([8]), x == MASK

    def ours() -> tuple[Tensor, Tensor]:
        return fast_dllm.get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, count)

    for got, expected in zip(ours(), transfer(logits, x, 8), strict=True):
        assert torch.equal(got, expected)
    case = f"get_transfer_index {ROWS}x{SIZE} {str(dtype)[6:]}"
    measure(benchmark, report, case, logits, ours, lambda: transfer(logits, x, 8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def bench_llada_generate(benchmark, report: Report, dtype: torch.dtype) -> None:
    """A model that costs nothing and is sure of every mask, so one pass suffices: the cost of all around the model."""
    logits, prompt = sharp(dtype, least=15.0), torch.zeros(1, 0, dtype=torch.int64)
    calls = []

    class Sure(torch.nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            calls.append(ids.size(1))
            return logits[:, : ids.size(1)]

    model = Sure()

    def ours() -> Tensor:
        return llada.generate(model, prompt, gen_length=ROWS, block_length=ROWS, mask_id=MASK)

    def formula() -> Tensor:
        x0, chosen = transfer(model(canvas()), canvas(), ROWS)
        return torch.where(chosen, x0, canvas())

    out = ours()
    assert calls == [1, ROWS]  # one call to learn the size of the vocabulary, and one pass
    assert torch.equal(out, formula())
    measure(benchmark, report, f"llada.generate {ROWS}x{SIZE} {str(dtype)[6:]}", logits, ours, formula)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def bench_dream_hooks(benchmark, report: Report, dtype: torch.dtype) -> None:
    logits, x = sharp(dtype), canvas()
    hooks = dream.generation_hooks(steps=64, mask_id=MASK)

    def ours() -> Tensor:
        shown = hooks["generation_logits_hook_func"](0, x, logits)
        dream_step(shown, x)  # Dream's own step, which the hooks cannot skip
        return hooks["generation_tokens_hook_func"](0, x, shown)

    expected = prefix_step(logits, x)
    assert 1 < (expected != MASK).sum() < ROWS
    assert torch.equal(ours(), expected)
    case = f"dream hooks {ROWS}x{SIZE} {str(dtype)[6:]}"
    measure(benchmark, report, case, logits, ours, lambda: dream_step(logits, x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["threshold", "prefix"])
def bench_dinfer_decode(benchmark, report: Report, kind: str, dtype: torch.dtype) -> None:
    logits, start = sharp(dtype), canvas()
    prefix = dinfer.PrefixParallelDecoder(mask_id=MASK, eos_id=EOS)
    decoder = prefix if kind == "prefix" else dinfer.ThresholdParallelDecoder(0, 0.9, mask_id=MASK, eos_id=EOS)

    def ours() -> Tensor:
        x = start.clone()
        decoder.decode(logits, 0, ROWS, x)
        return x

    expected = (prefix_step if kind == "prefix" else threshold_step)(logits, start)
    assert 1 < (expected != MASK).sum() < ROWS
    assert torch.equal(ours(), expected)
    case = f"dinfer {kind} {ROWS}x{SIZE} {str(dtype)[6:]}"
    measure(benchmark, report, case, logits, ours, lambda: threshold_step(logits, start))
