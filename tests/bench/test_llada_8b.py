"""The script that decodes with LLaDA-8B's shape, on a small one: it asks, writes, and measures every dtype."""

import json

import pytest

from bench import llada_8b
from bench.memory import MEASURABLE
from bench.report import __main__ as command
from lsp.models.costs import SHAPES
from lsp.models.loading import read_config

SMALL = llada_8b.SHAPE | {
    "d_model": 64, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 96, "vocab_size": 500,
    "embedding_size": 500, "mask_token_id": 499, "eos_token_id": 498,
}  # fmt: skip


def test_the_shape_is_that_of_llada():
    config, known = read_config(llada_8b.SHAPE), SHAPES["LLaDA-8B"]
    for name in ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "mlp_size", "rope_theta"):
        assert getattr(config, name) == getattr(known, name)


def test_it_asks_before_it_writes(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "n")
    with pytest.raises(SystemExit, match="nothing was written"):
        llada_8b.prepare(tmp_path / "deep" / "model", llada_8b.SHAPE, yes=False)
    assert "16.8 GB of random weights" in asked[0]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(llada_8b.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1e9}))
    with pytest.raises(SystemExit, match=r"Invalid FOLDER: expected 16.8 GB free in .*, got 1.0"):
        llada_8b.prepare(tmp_path / "model", llada_8b.SHAPE, yes=True)


@pytest.mark.skipif(not MEASURABLE, reason="no /proc")
def test_every_dtype_decodes_in_four_passes(tmp_path, capsys):
    kept = tmp_path / "docs/benchmarks/llada_8b.json"
    kept.parent.mkdir(parents=True)
    llada_8b.main([str(tmp_path / "model"), "--yes", "--json", str(kept)], SMALL, new=16)
    out = capsys.readouterr().out
    assert out.count("4 passes") == 8
    assert [line.partition(":")[0] for line in out.splitlines() if not line.startswith(" ")] == ["bfloat16", "int8"]
    assert json.loads((tmp_path / "model/config.json").read_text())["d_model"] == 64
    page = command.page(tmp_path / "docs", None)
    for dtype in ("bfloat16", "int8"):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {dtype}: scattered quarters, Fast-dLLM"))
        assert line.endswith("| 1.00 |")
        assert f"| {dtype}: prefixes of a quarter | " in page
    assert str(tmp_path) not in kept.read_text()  # nothing of where it was measured
    kept.write_text("{}")
    with pytest.raises(ValueError, match=r"Invalid format of llada_8b.json: expected 'lsp bench llada_8b 1', got None"):
        command.page(tmp_path / "docs", None)


def test_a_file_that_cannot_be_written_is_known_before_anything_is_measured(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        llada_8b.main([str(tmp_path / "model"), "--yes", "--json", str(tmp_path / "none" / "a.json")], SMALL)
    assert list(tmp_path.iterdir()) == []
