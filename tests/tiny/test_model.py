"""The model computes what LLaDA's formulas say and keeps the public format."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from lsp.tiny.training.model import Config, TinyModel, rotate

CONFIG = Config(vocab_size=50, d_model=64, n_layers=2, n_heads=2, mlp_hidden_size=96)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = TinyModel(CONFIG).eval()
    torch.nn.init.normal_(model.ff_out.weight, std=0.3)  # many different predictions
    return model


def by_hand(tensors: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Logits of one sequence from the tensors of a LLaDA checkpoint, written out in float64."""
    w = {k.removeprefix("model.transformer."): v.double() for k, v in tensors.items()}

    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + CONFIG.rms_norm_eps).sqrt() * weight

    angles = torch.arange(len(ids))[:, None] * 10000.0 ** -(torch.arange(0, 32, 2) / 32).double()
    cos, sin = torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin()
    x = w["wte.weight"][ids]
    for i in range(CONFIG.n_layers):
        b = {k.removeprefix(f"blocks.{i}."): v for k, v in w.items() if k.startswith(f"blocks.{i}.")}
        y, heads = norm(x, b["attn_norm.weight"]), []
        for h in range(CONFIG.n_heads):
            part = slice(32 * h, 32 * h + 32)
            q, k, v = (y @ b[f"{n}_proj.weight"].T[:, part] for n in "qkv")
            q, k = (z * cos + torch.cat([-z[:, 16:], z[:, :16]], 1) * sin for z in (q, k))
            heads.append((q @ k.T / 32**0.5).softmax(-1) @ v)
        x = x + torch.cat(heads, 1) @ b["attn_out.weight"].T
        y = norm(x, b["ff_norm.weight"])
        gate, up = y @ b["ff_proj.weight"].T, y @ b["up_proj.weight"].T
        x = x + (F.silu(gate) * up) @ b["ff_out.weight"].T
    return norm(x, w["ln_f.weight"]) @ w["ff_out.weight"].T


def test_saved_tensors_give_the_logits_by_lladas_formulas(model, tmp_path):
    model.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    ids = torch.randint(0, 50, (1, 37), generator=torch.Generator().manual_seed(1))
    logits = TinyModel.load(tmp_path)(ids)[0]
    expected = by_hand(tensors, ids[0].tolist())
    assert len(set(expected.argmax(-1).tolist())) > 5
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=1e-4)


def test_training_and_inference_attention_agree(model):
    ids = torch.randint(0, 50, (2, 20))
    torch.testing.assert_close(model.train()(ids), model.eval()(ids), atol=1e-5, rtol=1e-5)


def test_padding_does_not_change_what_it_follows(model):
    ids = torch.randint(0, 50, (1, 20))
    visible = (torch.arange(20) < 13)[None, None, None]
    torch.testing.assert_close(model(ids, visible)[:, :13], model(ids[:, :13]))
    assert not torch.allclose(model(ids)[:, :13], model(ids[:, :13]), atol=1e-3)


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    q, k = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    angles = torch.arange(40.0)[:, None] * 10000.0 ** -(torch.arange(0, 32, 2) / 32)
    turned_q, turned_k = (rotate(x.expand(40, 32), angles.cos(), angles.sin()) for x in (q, k))
    torch.testing.assert_close(turned_q.norm(dim=1), q.norm().expand(40))
    torch.testing.assert_close(turned_q[5] @ turned_k[2], turned_q[33] @ turned_k[30])


def test_config_has_the_public_keys_and_comes_back(model, tmp_path):
    model.save(tmp_path)
    text = (tmp_path / "config.json").read_text()
    values = json.loads(text)
    assert Config.from_json(text) == CONFIG
    assert (values["model_type"], values["block_type"]) == ("llada", "llama")
    assert values["embedding_size"] == values["vocab_size"] == 50
    assert values["n_kv_heads"] == values["n_heads"]
    assert not values["weight_tying"]
    assert not values["include_bias"]
    names = set(load_file(tmp_path / "model.safetensors"))
    layer = [
        "attn_norm",
        "q_proj",
        "k_proj",
        "v_proj",
        "attn_out",
        "ff_norm",
        "ff_proj",
        "up_proj",
        "ff_out",
    ]
    expected = {f"model.transformer.{n}.weight" for n in ("wte", "ln_f", "ff_out")}
    expected |= {f"model.transformer.blocks.{i}.{n}.weight" for i in range(2) for n in layer}
    assert names == expected
