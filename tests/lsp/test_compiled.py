"""Compiled blocks decode what the others do, with one graph for all layers and lengths."""

import re
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

import lsp
from lsp.models.compiled import CompiledTransformer, run_block
from lsp.models.config import ModelConfig
from lsp_kernels import PrefixCache
from tests.lsp.checkpoints import FAMILIES

PROMPTS = ["Use 2, 9 and 14 to make 4.\n", "Use 3, 5 and 7 to make 15.\n", "Use 1, 2 and 8 to make 9.\n"]


SHAPE = ModelConfig(
    vocab_size=50, d_model=64, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=32, mlp_size=48, max_length=64,
    rope_theta=1e4, norm_eps=1e-5,
)  # fmt: skip
SHAPES = {"plain": SHAPE, "biases": replace(SHAPE, qkv_bias=True), "norms of heads": replace(SHAPE, qk_norm=True)}
# What compiled code calls: products of torch's libraries, operators, and kernels that torch has written itself.
CALLED = r"^\s*(?:\w+ = )?(extern_kernels\.\w+|torch\.ops\.[\w.]+|(?:cpp|triton)_\w+)(?:\.run)?\("


@pytest.fixture(autouse=True)
def _fresh_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_one_graph_serves_all_layers_and_lengths_one_a_single_token_and_one_batches():
    model, counter = lsp.load("tiny", compile=True), CompileCounterWithBackend("eager")
    model.run_block = torch.compile(run_block, dynamic=True, fullgraph=True, backend=counter)

    def graphs_after(*passes: list[int]) -> int:
        for lengths in passes:
            borders = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
            positions = torch.cat([torch.arange(n) for n in lengths])
            cache = model.new_cache(len(lengths), 64)
            for _ in range(2):  # the second pass has a frozen prefix
                model(positions + 2, positions, borders, cache, [n // 3 for n in lengths])
        return counter.frame_count

    assert graphs_after([7], [9], [16], [33], [4], [2]) == 1
    assert graphs_after([1]) == 2
    assert graphs_after([3, 4], [5, 9], [2, 2, 2], [12] * 8, [1, 1]) == 3
    assert graphs_after([6], [1], [1] * 6) == 3


def test_compiled_blocks_decode_the_same_with_a_graph_for_one_sequence_and_one_for_batches():
    plain, model = lsp.load("tiny"), lsp.load("tiny", compile=True)
    counter = CompileCounterWithBackend("inductor")
    model.run_block = torch.compile(run_block, dynamic=True, fullgraph=True, backend=counter)
    for prompts in (PROMPTS[:1], PROMPTS[1:2], PROMPTS, PROMPTS[:2]):
        for scheduler in ("lsp", "full"):
            how = {"max_new_tokens": 24, "scheduler": scheduler}
            ours, theirs = (lsp.generate(each, prompts, **how) for each in (model, plain))
            assert [(g.tokens, g.passes) for g in ours] == [(g.tokens, g.passes) for g in theirs]
    assert 2 <= counter.frame_count <= 3  # a pass of a single token may be among them


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_computes_the_same_when_compiled(family, tmp_path):
    case = FAMILIES[family]()
    plain = lsp.load(case.save(tmp_path))
    model = CompiledTransformer(plain.config).requires_grad_(False)
    model.run_block = torch.compile(run_block, dynamic=True, fullgraph=True, backend="aot_eager")
    model.load_state_dict(plain.state_dict())
    tokens, borders = torch.tensor(list(range(2, 9))), torch.tensor([0, 4, 7], dtype=torch.int32)
    positions = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    caches = [each.new_cache(2, 16) for each in (plain, model)]
    for append in ([3, 1], [0, 2]):  # the second pass sees what the first has frozen
        found = [
            each(tokens, positions, borders, own, append) for each, own in zip((plain, model), caches, strict=True)
        ]
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    assert caches[0].frozen == caches[1].frozen == [3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_code_of_a_compiled_layer_makes_nine_calls(shape: str, dtype: torch.dtype) -> None:
    """Compiled for this CPU: four products, attention, its rotation, two norms, the gate, and no copy in between."""
    model = CompiledTransformer(SHAPES[shape]).requires_grad_(False).to(dtype)
    border = torch.tensor([0, 7], dtype=torch.int32)
    with inductor_config.patch(fx_graph_cache=False):
        _, codes = run_and_get_code(model, torch.arange(7), torch.arange(7), border, model.new_cache(1, 16), [3])
    (code,) = codes
    body = code[code.index("def call(") : code.index("runner = ")]
    calls = [name.removesuffix(".default") for name in re.findall(CALLED, body, re.M)]
    first = "extern_kernels.addmm" if SHAPES[shape].qkv_bias else "extern_kernels.mm"
    norm, product = "torch.ops.lsp.add_norm", "extern_kernels.mm"
    attention = ["torch.ops.lsp.rotate_", "torch.ops.lsp.suffix_attention", product]
    assert calls == [norm, first, *attention, norm, product, "torch.ops.lsp.silu_mul", product]


@pytest.mark.parametrize(
    ("loaded", "how"),
    [
        pytest.param({}, {"graph": True}, id="captured passes"),
        pytest.param({"dtype": "int8"}, {}, id="int8"),
        pytest.param({}, {"batch_size": 2}, id="a batch kept full"),
        pytest.param({"dtype": "int8"}, {"graph": True, "batch_size": 2}, id="all of them"),
    ],
)
def test_compiled_blocks_decode_the_same_with_graphs_int8_and_batches(loaded: dict, how: dict) -> None:
    plain, model = (lsp.load("tiny", compile=compiled, **loaded) for compiled in (False, True))
    ours, theirs = (lsp.generate(each, PROMPTS, max_new_tokens=24, **how) for each in (model, plain))
    assert [(each.tokens, each.passes) for each in ours] == [(each.tokens, each.passes) for each in theirs]


def test_another_cache_and_tensor_parallel_are_refused():
    model = lsp.load("tiny", compile=True)
    with pytest.raises(TypeError, match="Invalid cache: expected a PrefixCache for compiled blocks, got list"):
        model.run_layers(torch.tensor([2]), torch.tensor([0]), [])
    with pytest.raises(ValueError, match="Invalid compile: expected False with tensor_parallel, got True"):
        lsp.load("tiny", compile=True, tensor_parallel=True)


def test_operands_are_of_the_pass_that_has_begun():
    cache = PrefixCache(n_layers=2, batch=1, n_kv_heads=1, capacity=8, head_dim=32)
    with pytest.raises(RuntimeError, match="expected a pass that has begun"):
        cache.operands(0)
    cache.begin(None, [2])
    k, v, borders, prefixes, appends, slots = cache.operands(1)
    assert (k is cache.k[1], v is cache.v[1], borders, slots) == (True, True, None, None)
    assert (prefixes.tolist(), appends.tolist()) == ([0], [2])
    with pytest.raises(ValueError, match="Invalid layer: expected 0 to 1, got 2"):
        cache.operands(2)
