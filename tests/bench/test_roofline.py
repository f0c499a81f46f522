"""docs/roofline.md is what its command writes, and its formulas count what compiled kernels and torch's code do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bench.flops import pass_flops
from bench.roofline.__main__ import PAGE
from bench.roofline.counting import count
from bench.roofline.gpus import GPUS, Gpu
from bench.roofline.kernels import attention_work, commit_work, head_work, meta
from bench.roofline.page import concatenated, text
from bench.roofline.passes import (
    NoAttention,
    deep,
    model_of,
    our_pass,
    tokens_of,
    uncached_pass,
    usual_pass,
    without_attention,
)
from bench.roofline.work import Time, Work, least
from bench.support import softmax_confidence
from lsp.models.costs import SHAPES, pass_cost
from lsp_kernels import PrefixRule, commit_prefix, linear_commit_prefix, suffix_attention
from lsp_kernels.triton.aot.builds import build_attention
from lsp_kernels.triton.configs import device
from tests.gpus import VirtualGpu, gpu_of
from tests.virtual_gpu import cta

VIRTUAL = Gpu("virtual", "sm_80", 4, 1e12, 1e12)
ALL = PrefixRule(1.0, 1.0, snap=False)  # scores every row
SMALL = replace(
    SHAPES["LLaDA-8B"], vocab_size=320, d_model=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, mlp_size=96
)


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text("utf-8") == text(), "docs/roofline.md is stale: python -m bench.roofline"


class Counted:
    """A virtual GPU that counts products in tensor cores, and bytes by tensor."""

    def __init__(self, gpu: VirtualGpu, products: list[int]) -> None:
        self.gpu, self._products = gpu, products

    @property
    def products(self) -> int:
        return sum(self._products)

    def _bytes(self, kind: str, names: str) -> int:
        segments = {segment.name: segment for segment in self.gpu.driver.launches[-1].run.memory.segments}
        found = (getattr(segments[f"{name}_ptr"], kind) for name in names.split() if f"{name}_ptr" in segments)
        return sum(access.width * access.offsets.size for accesses in found for access in accesses)

    def loads(self, names: str) -> int:
        """Lanes that load the same bytes are counted each, so this is for tensors that lanes divide among them."""
        return self._bytes("loads", names)

    def stores(self, names: str) -> int:
        return self._bytes("stores", names)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Each mma.sync of a warp is 16 x 8 sums of 16 products."""
    products: list[int] = []
    load = cta._load

    def counting(step: Any) -> Any:
        def run(block: Any, mask: Any) -> None:
            lanes = block.threads.size if mask is None else np.count_nonzero(mask)
            products.append(lanes // 32 * 2 * 16 * 8 * 16)
            step(block, mask)

        return run

    def loaded(ptx: str) -> cta.Program:
        program = load(ptx)
        pairs = zip(program.kernel.instructions, program.steps, strict=True)
        steps = [counting(step) if i.opcode.startswith("mma.sync") else step for i, step in pairs]
        return replace(program, steps=steps)

    monkeypatch.setattr(cta, "_load", loaded)
    with gpu_of("sm_80", races=False, processors=VIRTUAL.processors) as gpu:
        yield Counted(gpu, products)


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


@pytest.mark.parametrize("ids", [600, 32864], ids=["whole rows", "split rows"])
def test_commit_loads_and_stores_what_is_counted(counted: Counted, ids: int) -> None:
    commit_prefix(normal(3, ids), integers(0, 2, 3), integers(3, 1), rule=ALL)
    work = commit_work(VIRTUAL, 3, ids, batch=2)
    assert counted.loads("x") == work.read == 3 * ids * 2
    assert counted.stores("token margin top1") == work.written
    assert counted.stores("token margin top1 value") == work.stored
    assert (work.stored > work.written) == (ids == 32864)
    assert work.loaded == work.read + (work.stored - work.written) + 3 * 12  # the rule reads tokens and margins


@pytest.mark.parametrize("rows", [5, 150], ids=["one tile", "two tiles"])
def test_the_head_loads_stores_and_multiplies_what_is_counted(counted: Counted, rows: int) -> None:
    size, ids = 128, 300
    linear_commit_prefix(normal(rows, size), normal(ids, size), integers(0, 2, rows), integers(2, rows - 2), rule=ALL)
    work = head_work(VIRTUAL, rows, size, ids, batch=2)
    shared = work.stored - work.written
    assert counted.loads("h w") == work.loaded - shared - 12 * rows
    assert counted.loads("w") == (2 if rows == 150 else 1) * ids * size * 2
    assert counted.stores("token margin top1") == work.written
    assert counted.stores("value") == shared > 0
    assert counted.products == work.products
    assert work.read == (rows + ids) * size * 2


@pytest.mark.parametrize(
    ("prefixes", "suffixes", "appended"),
    [([600, 20], [3, 7], [3, 4]), ([40, 0], [50, 1], [0, 1]), ([0], [9], [9])],
    ids=["split", "several tiles", "no prefix"],
)
def test_attention_loads_stores_and_multiplies_what_is_counted(
    counted: Counted, prefixes: list[int], suffixes: list[int], appended: list[int]
) -> None:
    queries, kv, size, capacity, batch = 4, 2, 64, 700, len(prefixes)
    tokens = sum(suffixes)
    borders = np.cumsum([0, *suffixes]).tolist()
    new, caches = [normal(tokens, kv, size) for _ in "kv"], [normal(batch, kv, capacity, size) for _ in "kv"]
    lengths = (integers(*values) for values in (borders, prefixes, appended))
    suffix_attention(normal(tokens, queries, size), *new, *caches, *lengths)
    work = attention_work(VIRTUAL, (queries, kv, size), prefixes, suffixes, appended, capacity)
    shared = work.stored - work.written
    assert counted.loads("q k v kc vc") == work.loaded - shared
    assert counted.stores("out kc vc") == work.written
    assert counted.stores("partial") == shared
    assert (shared > 0) == (prefixes[0] == 600)
    assert counted.products == work.products
    assert work.read == 2 * size * (2 * kv * (sum(prefixes) + tokens) + queries * tokens)


MATRIX = re.compile(r"(mma\.sync\S*\.m|wgmma\.mma_async\S*\.m|v_mfma_f32_)(\d+)[nx](\d+)[kx](\d+)")


@pytest.mark.parametrize(("architecture", "together", "times"), [("sm_80", 1, 1), ("sm_90", 4, 1), ("gfx942", 1, 3)])
def test_compiled_attention_multiplies_a_chunk_of_keys_as_counted(architecture: str, together: int, times: int) -> None:
    """LLaDA's heads. So many warps make a product together, and so many times the text has the body of the loop."""
    made = build_attention(architecture, group=1, split=False)
    rows, keys, size = (made.constants[name] for name in ("BM", "BN", "DP"))
    shapes = [[int(n) for n in found[1:]] for found in MATRIX.findall(made.compile().text)]
    compiled = sum(2 * m * n * k for m, n, k in shapes) * made.options["num_warps"] // together
    assert compiled == times * 4 * rows * keys * size


def test_launches_are_planned_for_the_gpu_that_is_named() -> None:
    few, many = (replace(VIRTUAL, processors=n) for n in (1, 400))
    assert commit_work(many, 3, 32864).stored > commit_work(few, 3, 32864).stored
    assert device.device_of(torch.device("cpu")).processors == 4  # as before


def test_code_in_torch_moves_its_operands_and_results_once() -> None:
    """By hand: 64 rows of 300 logits in 2 bytes, their softmax in 8 bytes, tokens in 8 bytes."""
    logits = meta(64, 300, dtype=torch.bfloat16)
    n, tokens = 64 * 300, 64 * 8
    works = {work.name: (work.read, work.written) for work in count(lambda: softmax_confidence(logits))}
    assert works == {
        "argmax": (2 * n, tokens),
        "_to_copy": (2 * n, 8 * n),
        "_softmax": (8 * n, 8 * n),
        "gather": (2 * tokens, tokens),  # what it returns, and the indices
    }
    weight, hidden = meta(300, 32, dtype=torch.bfloat16), meta(64, 32, dtype=torch.bfloat16)
    assert count(lambda: F.linear(hidden, weight)) == [Work("mm", 2 * 32 * (300 + 64), 2 * n, 2 * n * 32)]
    row = meta(1, 300, dtype=torch.float32).expand(64, 300)
    assert [work.read for work in count(lambda: row + 1)] == [4 * 300]
    assert count(lambda: logits.view(-1)[3:].t()) == []


def test_concatenation_moves_the_keys_three_times_and_ours_once() -> None:
    queries, kv, size, batch, prefix, suffix = 4, 2, 32, 3, 50, 64
    works = concatenated((queries, kv, size), batch, prefix)
    assert [work.name for work in works] == ["cat", "cat", "scaled_dot_product_attention"]
    keys, tokens = 2 * batch * kv * (prefix + suffix) * size * 2, batch * queries * suffix * size * 2
    assert sum(work.moved for work in works) == 3 * keys + 2 * tokens
    assert works[-1].products == 4 * batch * queries * size * suffix * (prefix + suffix)
    lengths = [prefix] * batch, [suffix] * batch, [0] * batch
    assert attention_work(VIRTUAL, (queries, kv, size), *lengths, capacity=200).moved == keys + 2 * tokens


def test_a_pass_reads_every_weight_once_and_makes_the_products_that_shapes_tell() -> None:
    batch, prefix, suffix = 2, 24, 16
    tokens = batch * suffix
    for remembered in (model_of, without_attention):
        remembered.cache_clear()  # the making of a model is no part of its passes
    works = our_pass(VIRTUAL, SMALL, batch, prefix, suffix)
    names = [work.name for work in works]
    assert names.count("suffix_attention") == SMALL.n_layers
    assert names.count("mm") == 4 * SMALL.n_layers
    assert "uniform_" not in names
    inputs = 2 * tokens * (2 * SMALL.d_model + SMALL.n_heads * SMALL.head_dim + SMALL.mlp_size) * SMALL.n_layers
    norms = 2 * SMALL.d_model * (2 * SMALL.n_layers + 1)
    weights = sum(work.read for work in works if work.name == "mm") - inputs + norms
    (head,) = (work for work in works if work.name == "linear_commit_prefix")
    weights += head.read - 2 * tokens * SMALL.d_model
    assert weights == pass_cost(SMALL, tokens=tokens, rows=tokens, prefix=prefix).read
    usual = usual_pass(SMALL, batch, prefix, suffix)
    one = pass_flops(SMALL, suffix, prefix, suffix)
    assert sum(work.products for work in usual) == batch * one
    all_tokens = pass_flops(SMALL, prefix + suffix, 0, suffix)
    assert sum(work.products for work in uncached_pass(SMALL, batch, prefix, suffix)) == batch * all_tokens
    assert (
        sum(work.products for work in works if work.name == "mm")
        == sum(work.products for work in usual if work.name == "mm") - 2 * tokens * SMALL.d_model * SMALL.vocab_size
    )


def test_layers_that_are_not_run_are_counted_as_if_they_were() -> None:
    config = replace(SMALL, n_layers=4)
    model, tokens, cache = model_of(config), tokens_of(2, 5), NoAttention()
    all_layers = count(lambda: model.run_layers(*tokens, cache))
    counted = deep(config, lambda model: model.run_layers(*tokens, cache))
    assert Counter(counted) == Counter(all_layers)
    assert len(counted) > 4 * 10


def test_a_time_is_bound_by_the_slowest_of_memory_products_and_launches() -> None:
    gpu = replace(VIRTUAL, bandwidth=100.0, products=1000.0)
    read, multiply = Work("read", 150, 50), Work("multiply", 10, 0, products=5000)
    assert least([read], gpu, launch=1.0) == Time(2.0, "memory")
    assert least([multiply], gpu, launch=1.0) == Time(5.0, "tensor cores")
    assert least([read, multiply], gpu, launch=1.0) == Time(7.0, "tensor cores")
    assert least([read, multiply], gpu, launch=4.0) == Time(8.0, "launches")
    assert least([read] * 4 + [multiply], gpu, launch=0) == Time(13.0, "memory")


def test_the_gpus_are_those_that_the_kernels_serve() -> None:
    assert [gpu.name.split()[0] for gpu in GPUS] == ["A100", "H100", "B200", "MI300X"]
    assert {gpu.architecture for gpu in GPUS} <= set(device.ARCHITECTURES)
