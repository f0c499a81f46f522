"""A pass of a whole model on a GPU: what it launches, and that it computes what it computes on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lsp.models import Transformer
from lsp.models.config import ModelConfig
from lsp_kernels import Workspace, suffix_attention
from tests.gpus import RealGpu, VirtualGpu

LAUNCHES = 9  # of a layer: four products, attention, its rotation, two norms with their sums, the gate
SHAPE = ModelConfig(
    vocab_size=50, d_model=64, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=32, mlp_size=48, max_length=64,
    rope_theta=1e4, norm_eps=1e-5,
)  # fmt: skip
SHAPES = {"plain": SHAPE, "biases": replace(SHAPE, qkv_bias=True), "norms of heads": replace(SHAPE, qk_norm=True)}
POSITIONS = torch.arange(6)


def model_of(shape: ModelConfig = SHAPE, dtype: torch.dtype = torch.float32) -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape).requires_grad_(False).to(dtype)


def on_gpu(model: Transformer) -> Transformer:
    """With weights on the GPU as plain attributes: torch cannot turn those of a virtual one into parameters."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                delattr(module, name)
                setattr(module, name, parameter.detach().cuda())
    return model


class Cache:
    """What a pass asks of a cache: a prefix is frozen, two tokens are appended."""

    def __init__(self, model: Transformer, device: str, prefix: int) -> None:
        shape = (model.config.n_layers, 1, model.config.n_kv_heads, prefix + 8, model.config.head_dim)
        self.k, self.v = (torch.zeros(shape, dtype=model.embedding.weight.dtype, device=device) for _ in range(2))
        lengths = ([0, len(POSITIONS)], [prefix], [2])
        self.lengths = [torch.tensor(x, dtype=torch.int32).to(device) for x in lengths]
        self.workspace = Workspace()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return suffix_attention(q, k, v, self.k[layer], self.v[layer], *self.lengths, workspace=self.workspace)


def pass_of(model: Transformer, device: str, prefix: int = 0) -> Callable[[], Tensor]:
    cache, tokens, positions = Cache(model, device, prefix), torch.arange(6).to(device), POSITIONS.to(device)
    return lambda: model.run_layers(tokens, positions, cache)


@pytest.mark.gpu("sm_80")
@pytest.mark.parametrize("prefix", [0, 600], ids=["whole", "keys shared by programs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_has_nine_launches(gpu: RealGpu | VirtualGpu, shape: str, dtype: torch.dtype, prefix: int) -> None:
    model = on_gpu(model_of(SHAPES[shape], dtype))
    run = pass_of(model, "cuda", prefix)
    run()  # grows the workspace
    with_layer = gpu.launched(run)
    model.blocks = model.blocks[:0]
    without = gpu.launched(run)
    for name in without:
        with_layer.remove(name)
    ours = [name for name in with_layer if name.endswith("_kernel")]
    assert sorted(ours) == ["add_norm_kernel"] * 2 + ["attention_kernel", "rotate_kernel", "silu_mul_kernel"]
    assert len(with_layer) == LAUNCHES, with_layer


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("shape", ["plain", "norms of heads"])
def test_a_pass_gives_what_it_gives_on_a_cpu(gpu: RealGpu | VirtualGpu, shape: str) -> None:
    model = model_of(SHAPES[shape])
    expected = pass_of(model, "cpu")()
    found = pass_of(on_gpu(model), "cuda")().cpu()
    assert len(set(expected.argmax(-1).tolist())) > 1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
