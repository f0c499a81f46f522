"""``make bench-gpu`` on a virtual GPU: every line of it runs here, so that on a real one only the speed is new.

What a virtual GPU does not have are stand-ins: a CUDA graph is replayed by running the function again, flash-attn is
the definition of attention under its name.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.gpu import __main__ as command
from bench.gpu import attention, block, commit, decode, head, model, rivals
from bench.gpu.case import OURS, Case, Contender, Plan
from bench.gpu.clock import Clock, Timed
from bench.gpu.machine import is_served
from bench.gpu.report import as_json, as_markdown, case_of
from bench.gpu.run import Outcome, measure
from bench.gpu.shapes import BF16, FP32, REAL, SMALL, TINY, Heads, Lengths
from lsp.decoding import graphs, scoring
from lsp.models.costs import SHAPES
from lsp_kernels import _ops, reference
from lsp_kernels.triton.configs import device
from tests.gpus import gpu_of
from tests.virtual_gpu.tensors import GpuTensor

ONCE = Clock(rounds=1, flushed=1)
EVEN, RAGGED = TINY.lengths[0], TINY.lengths[-1]


@pytest.fixture
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A virtual one, with stand-ins for graphs."""
    for module in (model, graphs):
        monkeypatch.setattr(module, "capture", lambda run, device: run)
    monkeypatch.setattr(scoring, "Tensor", GpuTensor)  # so that the loop takes its weight for a plain one
    with gpu_of("sm_80", races=False):
        yield


def flash_attn(damage: float = 0.0) -> types.ModuleType:
    """flash-attn's module: caches are [B, S, H, D], and it appends."""

    def flash_attn_with_kvcache(
        q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, *, cache_seqlens: Any, causal: bool
    ) -> torch.Tensor:
        assert not causal
        caches = [x.transpose(1, 2) for x in (k_cache, v_cache)]
        new = torch.full_like(cache_seqlens, q.size(1))
        return reference.suffix_attention(q, k, v, *caches, None, cache_seqlens, new) + damage

    module = types.ModuleType("flash_attn")
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    return module


@pytest.mark.usefixtures("_a_gpu")
def test_every_contender_is_checked_and_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn())
    out = tmp_path / "found.on-a-gpu"
    assert command.main(["--layers", "1", "--out", str(out)], TINY, ONCE) == 0
    report = json.loads((tmp_path / "found.on-a-gpu.json").read_text("utf-8"))
    assert report["format"] == "lsp bench-gpu 1"
    assert report["right"]
    assert report["machine"]["gpu"] == "virtual sm_80"
    assert report["machine"]["torch"].startswith(torch.__version__.split("+")[0])
    groups = {case["group"] for case in report["cases"]}
    kernels = {"commit_prefix", "token_stats", "linear_commit_prefix", "linear_token_stats", "suffix_attention"}
    kernels |= {"add_norm", "rotate_", "silu_mul"}
    assert groups == kernels | {"a pass of the model, with its head", "a whole decode"}
    why = {reason for case in report["cases"] for reason in case["skipped"].values()}
    assert why == {"needs sequences of one length", "needs as many new tokens in every sequence"}
    for case in report["cases"]:
        assert case["times"][OURS]["of ours"] == 1
        assert all(timed["median us"] > 0 for timed in case["times"].values())
        assert case["group"] not in kernels or case["limit"]["ours of it"] > 0
    timed = {name for case in report["cases"] for name in case["times"]}
    assert timed >= {"topk(2)", "float64 softmax", "F.linear + topk(2)", "cat + SDPA", "FlexAttention on a view"}
    assert timed >= {
        rivals.FLASH,
        "cat + SDPA, one by one",
        "padded SDPA with a mask",
        "ours, captured",
        "ours, blocks compiled",
        "ours, graphs captured anew",
    }
    text = (tmp_path / "found.on-a-gpu.md").read_text("utf-8")
    assert text.startswith("# bench-gpu: virtual sm_80\n")
    assert all(f"| {case['case']} | " in text for case in report["cases"])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(report["cases"]) + 1
    assert not any(line.startswith(("WRONG", "skipped")) for line in printed)


@pytest.mark.targets
@pytest.mark.usefixtures("_a_gpu")
def test_a_model_with_biases_grouped_heads_and_shifted_logits(tmp_path: Path) -> None:
    dream = {"Dream-7B": replace(SHAPES["Dream-7B"], **SMALL, n_heads=4, n_kv_heads=2)}
    chosen = ["--only", "model", "--only", "decode", "--layers", "2", "--out", str(tmp_path / "found")]
    assert command.main(chosen, replace(TINY, models=dream), ONCE) == 0
    cases = json.loads((tmp_path / "found.json").read_text("utf-8"))["cases"]
    assert [(case["skipped"], len(case["times"])) for case in cases] == [({}, 5), ({}, 3)]


@pytest.mark.targets
@pytest.mark.usefixtures("_a_gpu")
def test_kernels_in_float32_with_and_without_grouped_heads(tmp_path: Path) -> None:
    shapes = replace(
        TINY,
        logits=tuple((*shape, FP32) for *shape, _ in TINY.logits),
        products=tuple((*shape, FP32) for *shape, _ in TINY.products),
        heads=(*TINY.heads, Heads(2, 2, 32)),
        dtypes=(FP32,),
    )
    chosen = [word for kind in ("commit", "head", "attention", "block") for word in ("--only", kind)]
    assert command.main([*chosen, "--out", str(tmp_path / "found")], shapes, ONCE) == 0
    cases = json.loads((tmp_path / "found.json").read_text("utf-8"))["cases"]
    assert len(cases) == 4 + 2 * len(TINY.lengths) + 3
    assert all("times" in case and case["dtype"] == "float32" for case in cases)
    assert all(case["skipped"][rivals.FLASH] for case in cases if case["group"] == "suffix_attention")


def off_by_one(of: Callable[..., Any], **fields: int) -> Callable[..., Any]:
    """An operation by its definition, whose results are wrong in a field."""

    def run(*operands: Any, workspace: object = None, **options: Any) -> Any:
        found = of(*operands, **options)
        return found._replace(**{name: getattr(found, name) + wrong for name, wrong in fields.items()})

    return run


def attending(damage: float = 0.0, append: bool = True) -> Callable[..., torch.Tensor]:
    """Attention by its definition, wrong by `damage` or without what it should append."""

    def run(*operands: Any, workspace: object = None, **options: Any) -> torch.Tensor:
        given = operands if append else operands[:-1]
        return reference.suffix_attention(*given, **options) + damage

    return run


def of_a_block(name: str, damage: float = 0.0, sum_of_both: bool = True) -> Callable[..., Any]:
    """An operation of a block by its definition: wrong by `damage`, or without the sum of a residual."""

    def run(*operands: Any, **options: Any) -> Any:
        if not sum_of_both:
            options["residual"] = options["residual"].clone()
        out = getattr(reference, name)(*operands, **options)
        if out is None:
            operands[0].add_(damage)
        return None if out is None else out + damage

    return run


HEADS = TINY.heads[0]
SIZES = TINY.models["LLaDA-8B"], 5, BF16
DEFECTS: dict[str, tuple[Any, str, Any, Callable[[], Case], str]] = {
    "another token": (
        commit, "commit_prefix", off_by_one(reference.commit_prefix, tokens=1),
        lambda: commit.commit_case(*TINY.logits[0]), "tokens: ",
    ),
    "another length": (
        commit, "commit_prefix", off_by_one(reference.commit_prefix, lengths=1),
        lambda: commit.commit_case(*TINY.logits[0]), "lengths: ",
    ),
    "other log-odds": (
        commit, "token_stats", off_by_one(reference.token_stats, log_odds=1),
        lambda: commit.stats_case(*TINY.logits[0]), "log_odds: wrong by 1, ",
    ),
    "another token of the head": (
        head, "linear_commit_prefix", off_by_one(reference.linear_commit_prefix, tokens=-1),
        lambda: head.commit_case(*TINY.products[0]), "tokens: worse ",
    ),
    "another commit of the head": (
        head, "linear_commit_prefix", off_by_one(reference.linear_commit_prefix, lengths=1),
        lambda: head.commit_case(*TINY.products[0]), "lengths: ",
    ),
    "other logits of the head": (
        head, "linear_token_stats", off_by_one(reference.linear_token_stats, top1=1),
        lambda: head.stats_case(*TINY.products[0]), "top1: wrong by 1",
    ),
    "attention": (
        attention, "suffix_attention", attending(0.1),
        lambda: attention.attention_case(HEADS, EVEN, BF16), "output: wrong by 0.1",
    ),
    "attention, ragged": (
        attention, "suffix_attention", attending(0.1),
        lambda: attention.attention_case(HEADS, RAGGED, BF16), "output: wrong by 0.1",
    ),
    "nothing is appended": (
        attention, "suffix_attention", attending(append=False),
        lambda: attention.attention_case(HEADS, EVEN, BF16), "k_cache: ",
    ),
    "a norm": (block, "add_norm", of_a_block("add_norm", 0.1), lambda: block.norm_case(*SIZES), "norm: wrong by 0.1"),
    "a sum that is not kept": (
        block, "add_norm", of_a_block("add_norm", sum_of_both=False), lambda: block.norm_case(*SIZES), "residual: ",
    ),
    "a rotation": (
        block, "rotate_", of_a_block("rotate_", 0.1), lambda: block.rotation_case(*SIZES), "heads: wrong by 0.1",
    ),
    "a gate": (
        block, "silu_mul", of_a_block("silu_mul", 0.1), lambda: block.gate_case(*SIZES), "gated product: wrong by 0.1",
    ),
    "the pass of the model": (
        model, "Work.ours", lambda work: (work.concatenated()[0].roll(1, 0), work.concatenated()[1]),
        lambda: model.pass_case(TINY.models["LLaDA-8B"], 1, 2, 6, 4), "hidden: wrong by ",
    ),
    "tokens of the model": (
        model, "Work.ours", lambda work: (work.concatenated()[0], work.concatenated()[1].roll(1, 0)),
        lambda: model.pass_case(TINY.models["LLaDA-8B"], 1, 2, 6, 4), "tokens: ",
    ),
    "the decode": (
        decode, "Work.decode", None,
        lambda: decode.decode_case(TINY.models["LLaDA-8B"], 1, 2, 5, 6, 3), "margins: differ ",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("_a_gpu")
@pytest.mark.parametrize("defect", DEFECTS)
def test_what_is_wrong_has_no_time(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong, make, found = DEFECTS[defect]
    target, _, attribute = name.rpartition(".")
    if defect == "the decode":
        right = decode.Work.decode

        def wrong(work: decode.Work, **options: Any) -> Any:
            margins, texts = right(work, **options)
            ours = type(work.model) is decode.Transformer
            return margins + np.where(ours, margins.mean(), 0), texts

    monkeypatch.setattr(getattr(where, target) if target else where, attribute, wrong)
    outcome = measure(Plan("", "", {}, make), ONCE)
    assert outcome.wrong is not None
    assert outcome.wrong.startswith(found), outcome.wrong
    assert outcome.times == {}
    assert "times" not in case_of(outcome)


@pytest.mark.usefixtures("_a_gpu")
def test_a_rival_that_is_wrong_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn(damage=0.1))
    monkeypatch.setattr(attention, "suffix_attention", attending())
    outcome = measure(Plan("", "", {}, lambda: attention.attention_case(HEADS, EVEN, BF16)), ONCE)
    assert outcome.wrong is None
    assert outcome.skipped[rivals.FLASH].startswith("output: wrong by 0.1")
    assert rivals.FLASH not in outcome.times
    assert "SDPA on a view" in outcome.times


@pytest.mark.usefixtures("_a_gpu")
def test_a_rival_that_cannot_serve_a_case_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "suffix_attention", attending())
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    for dtype, why in ((FP32, "has no float32"), (BF16, "not installed: ")):
        case = attention.attention_case(HEADS, Lengths((3,), (2,)), dtype)
        assert case.missing[rivals.FLASH].startswith(why)

    def refused(*_: object) -> None:
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(model, "capture", refused)
    case = model.pass_case(TINY.models["LLaDA-8B"], 1, 1, 3, 2)
    assert case.missing == {"ours, captured": "cannot be captured: operation not permitted"}


def raising(error: Exception) -> Callable[[], Any]:
    def run() -> Any:
        raise error

    return run


FULL = torch.OutOfMemoryError("no room\nfor it")


@pytest.mark.usefixtures("_a_gpu")
def test_what_raises_stops_nothing_else() -> None:
    fine = Contender(OURS, int, lambda _: None)
    broken = Contender("other", raising(ValueError("bad")), lambda _: None)
    outcome = measure(Plan("", "", {}, lambda: Case([fine, broken])), ONCE)
    assert set(outcome.times) == {OURS}
    assert outcome.skipped == {"other": "ValueError: bad"}
    too_large = measure(Plan("", "", {}, raising(FULL)), ONCE)
    assert too_large.wrong is None
    assert too_large.skipped == {OURS: "OutOfMemoryError: no room"}
    defect = measure(Plan("", "", {}, raising(ValueError("bad"))), ONCE)
    assert defect.wrong == "ValueError: bad"
    rival = replace(broken, run=raising(FULL))
    assert measure(Plan("", "", {}, lambda: Case([fine, rival])), ONCE).skipped == {
        "other": "OutOfMemoryError: no room"
    }
    limits = {"read": (raising(FULL), 1)}
    unlimited = measure(Plan("", "", {}, lambda: Case([fine], limits)), ONCE)
    assert (unlimited.times, unlimited.skipped) == ({}, {OURS: "OutOfMemoryError: no room"})


@pytest.mark.usefixtures("_a_gpu")
def test_a_wrong_result_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commit, "commit_prefix", off_by_one(reference.commit_prefix, tokens=1))
    cases = {commit.commit_case: "commit_prefix", lambda *_: raising(FULL)(): "token_stats"}
    monkeypatch.setattr(commit, "NAMED", cases)
    assert command.main(["--only", "commit", "--out", str(tmp_path / "found")], TINY, ONCE) == 1
    report = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert not report["right"]
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("WRONG    commit_prefix: 6 x 600, bfloat16: tokens: ")
    assert second == "skipped  token_stats: 6 x 600, bfloat16: OutOfMemoryError: no room"
    text = (tmp_path / "found.md").read_text("utf-8")
    assert "| 6 x 600, bfloat16 | WRONG: tokens: " in text
    assert "| 6 x 600, bfloat16 | skipped |" in text


@pytest.mark.usefixtures("_a_gpu")
def test_what_was_found_is_in_the_files_before_the_next_case_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Case:
        found = json.loads((tmp_path / "found.json").read_text("utf-8"))
        assert [case["group"] for case in found["cases"]] == ["commit_prefix"]
        raise KeyboardInterrupt

    monkeypatch.setattr(commit, "NAMED", {commit.commit_case: "commit_prefix", interrupted: "token_stats"})
    with pytest.raises(KeyboardInterrupt):
        command.main(["--only", "commit", "--out", str(tmp_path / "found")], TINY, ONCE)
    report = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert report["ended"] == "interrupted"
    assert len(report["cases"]) == 1
    assert "**Not all cases: interrupted.**" in (tmp_path / "found.md").read_text("utf-8")


@pytest.mark.usefixtures("_a_gpu")
def test_a_lost_device_is_said_once_and_nothing_after_it_is_called_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    illegal = RuntimeError("CUDA error: an illegal memory access was encountered")

    def losing(*_: object) -> Case:
        monkeypatch.setattr(torch.cuda, "synchronize", raising(illegal))
        raise illegal

    cases = {commit.commit_case: "commit_prefix", losing: "token_stats", lambda *_: raising(illegal)(): "select_prefix"}
    monkeypatch.setattr(commit, "NAMED", cases)
    assert command.main(["--only", "commit", "--out", str(tmp_path / "found")], TINY, ONCE) == 1
    report = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert [case["group"] for case in report["cases"]] == ["commit_prefix", "token_stats"]
    assert report["ended"].startswith("the device was lost in the last one (RuntimeError: CUDA error: an illegal")
    out, err = capsys.readouterr()
    assert out.count("WRONG") == 1
    assert err.count("lost") == 1


def test_without_a_gpu_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["--out", str(tmp_path / "found")]) == 2
    assert "there is no GPU that torch can use here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_a_gpu")
def test_a_gpu_that_the_kernels_do_not_serve_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_served()
    for known in (device.device_of, device.unknown_architecture, _ops.triton_reason):
        known.cache_clear()
    monkeypatch.setattr(device, "query", lambda _: device.Device("sm_75", 40))
    assert command.main([]) == 2
    assert "do not serve this GPU: virtual sm_80 (sm_75); served by the reference" in capsys.readouterr().err


@pytest.mark.usefixtures("_a_gpu")
def test_everybody_takes_turns_and_slow_ones_stop_after_three() -> None:
    called: list[str] = []
    runs = {name: (lambda name=name: called.append(name)) for name in "ab"}
    for timing in ("events", "host"):
        called.clear()
        times = Clock(rounds=5, seconds=0.0, flushed=1).times(runs, timing)
        assert "".join(called) == "abbaab"
        assert {timed.rounds for timed in times.values()} == {3}
    assert Timed.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Timed(3.0, 2.0, 4.0, 5)
    assert Timed.of([7.0]) == Timed(7.0, 7.0, 7.0, 1)


def test_the_limit_is_the_slowest_of_its_parts_and_ratios_are_of_medians() -> None:
    outcome = Outcome(Plan("g", "c", {"rows": 3}, Case))
    outcome.times = {OURS: Timed(20.0, 19.0, 21.0, 9), "other": Timed(50.0, 40.0, 60.0, 9)}
    outcome.limit, outcome.limited_by = Timed(16.0, 15.0, 17.0, 9), "read"
    found = case_of(outcome)
    assert (found["group"], found["case"], found["rows"]) == ("g", "c", 3)
    assert found["times"]["other"]["of ours"] == 2.5
    assert found["limit"] == {
        "median us": 16.0, "low us": 15.0, "high us": 17.0, "rounds": 9, "by": "read", "ours of it": 1.25,
    }  # fmt: skip
    text = as_markdown(as_json({"gpu": "one"}, [outcome]))
    assert "| c | 20.0 | 1.25 | read | 2.5 |" in text


def test_what_is_measured_covers_what_it_promises() -> None:
    plans = list(command.plans(command.KINDS, REAL, layers=4))
    names = [(plan.group, plan.name) for plan in plans]
    assert len(set(names)) == len(names)
    passes = [plan.facts for plan in plans if plan.group == "suffix_attention"]
    prefixes = {facts["prefixes"][0] for facts in passes if len(facts["prefixes"]) == 1}
    assert min(prefixes) == 0
    assert max(prefixes) == 8192
    assert {(facts["heads"], facts["K/V heads"]) for facts in passes} == {(32, 32), (28, 4)}
    assert {facts["dtype"] for facts in passes} == {"bfloat16", "float32"}
    assert any(len(set(facts["suffixes"])) > 1 for facts in passes)
    blocks = [(plan.group, plan.facts["sizes of"], plan.facts["dtype"]) for plan in plans if "sizes of" in plan.facts]
    assert {group for group, *_ in blocks} == {"add_norm", "rotate_", "silu_mul"}
    assert len(set(blocks)) == 3 * 2 * 2
    models = [plan.facts for plan in plans if "model" in plan.facts]
    assert {(facts["model"], facts["batch"], facts["layers"]) for facts in models} == {
        (name, batch, 4) for name in ("LLaDA-8B", "Dream-7B") for batch in (1, 8)
    }
