"""Suffix attention on a GPU, timed by CUDA events, against what people do today and the limits of memory and matmul."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from bench.ratios import Contender, Report, time_on_device
from bench.sizes import sized
from bench.support import COMPILER
from lsp_kernels import Workspace, reference, suffix_attention, warmup_attention

pytestmark = [pytest.mark.gpu("sm_80", attention=True), pytest.mark.usefixtures("gpu")]
SIZE = sized(128, tiny=32)
SHAPES = [  # heads of queries and keys, prefix, suffix
    pytest.param(*shape, id="{0}/{1}, {3} queries, prefix {2}".format(*shape))
    for shape in sized(
        [(28, 4, 8192, 16), (28, 4, 1024, 64), (32, 32, 1024, 64), (32, 32, 256, 1024)],
        tiny=[(7, 1, 40, 8)],
    )
]


class Pass:
    """One sequence. We append its pass to the cache; torch gets a cache that already holds it, or concatenates."""

    def __init__(self, hq: int, hkv: int, prefix: int, suffix: int, dtype: torch.dtype) -> None:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, device="cuda").to(dtype)

        self.q, self.k, self.v = normal(1, suffix, hq, SIZE), normal(1, suffix, hkv, SIZE), normal(1, suffix, hkv, SIZE)
        self.k_cache, self.v_cache = normal(1, hkv, prefix + suffix, SIZE), normal(1, hkv, prefix + suffix, SIZE)
        self.prefix, self.grouped, self.workspace = prefix, hq != hkv, Workspace()
        self.lengths = [torch.tensor([n], dtype=torch.int32, device="cuda") for n in (prefix, suffix)]

    def arguments(self) -> tuple[Tensor | None, ...]:
        return self.q, self.k, self.v, self.k_cache, self.v_cache, None, *self.lengths

    def ours(self) -> Tensor:
        return suffix_attention(*self.arguments(), workspace=self.workspace)

    def view(self) -> Tensor:
        return F.scaled_dot_product_attention(
            self.q.transpose(1, 2), self.k_cache, self.v_cache, enable_gqa=self.grouped
        )

    def concatenated(self) -> Tensor:
        k, v = (
            torch.cat([cache[:, :, : self.prefix], new.transpose(1, 2)], dim=2)
            for cache, new in ((self.k_cache, self.k), (self.v_cache, self.v))
        )
        return F.scaled_dot_product_attention(self.q.transpose(1, 2), k, v, enable_gqa=self.grouped)

    def limits(self) -> dict[str, Contender]:
        """As many bytes as keys and values have, by copying half of them, and as many products, by cuBLAS."""
        half = self.k_cache.numel()
        source, target = torch.empty(2, half, dtype=self.q.dtype, device="cuda")
        rows, keys = self.q.numel() // SIZE, self.k_cache.size(2)
        left = torch.randn(rows, SIZE, device="cuda").to(self.q.dtype)
        right = torch.randn(SIZE, 2 * keys, device="cuda").to(self.q.dtype)
        return {"memory": lambda: target.copy_(source), "matmul": lambda: left @ right}


def flash_with_cache(work: Pass) -> Contender | None:
    """flash-attn's decoding kernel, where it is installed: it appends as well."""
    try:
        flash = importlib.import_module("flash_attn").flash_attn_with_kvcache
    except ImportError:
        return None
    k_cache, v_cache = (x.transpose(1, 2).contiguous() for x in (work.k_cache, work.v_cache))
    return lambda: flash(work.q, k_cache, v_cache, work.k, work.v, cache_seqlens=work.lengths[0], causal=False)


@pytest.mark.parametrize("dtype", sized([torch.bfloat16, torch.float16], tiny=[torch.bfloat16]), ids=str)
@pytest.mark.parametrize(("hq", "hkv", "prefix", "suffix"), SHAPES)
def bench_attention_on_gpu(
    benchmark, report: Report, hq: int, hkv: int, prefix: int, suffix: int, dtype: torch.dtype
) -> None:
    work = Pass(hq, hkv, prefix, suffix, dtype)
    warmup_attention(*work.arguments())
    wide = (x.double() for x in (work.q, work.k, work.v, work.k_cache, work.v_cache))
    truth = reference.suffix_attention(*wide, None, *work.lengths)
    out = work.ours()  # has appended: from here on torch finds the same keys in the cache
    allowed = 2 * (work.view().transpose(1, 2) - truth).abs().max() + 1e-5
    assert (out - truth).abs().max() <= allowed
    compiled = torch.compile(flex_attention, backend=COMPILER)
    contenders = {
        "ours": work.ours,
        "SDPA on a view": work.view,
        "cat + SDPA": work.concatenated,
        "FlexAttention on a view": lambda: compiled(
            work.q.transpose(1, 2), work.k_cache, work.v_cache, enable_gqa=work.grouped
        ),
    }
    if flash := flash_with_cache(work):
        contenders["flash_attn_with_kvcache"] = flash
    times = time_on_device(contenders | work.limits())
    limit = max(times.pop("memory"), times.pop("matmul"))
    cells = {"limit": f"{limit * 1e6:.1f} us"} | {name: f"{t / limit:.2f}" for name, t in times.items()}
    case = f"{hq}/{hkv}, {suffix} on {prefix}, {str(dtype)[6:]}"
    report.add("suffix_attention on a GPU: multiples of the limit", case, cells)
    benchmark.pedantic(lambda: (work.ours(), torch.cuda.synchronize()), rounds=20)
