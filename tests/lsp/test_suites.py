"""The suites that compare decoders, and vLLM's plugin, run the longest stable prefix as docs/integrate.md shows.

The ordinary tests run on the stand-ins of tests/lsp/suites.py. LSP_D2CACHE, LSP_ACCEL_EVAL, LSP_PARALLEL_BENCH and
LSP_DLLM_PLUGIN name folders of the real ones, and LSP_SUITES_PYTHON a Python that has what they need.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lsp
from lsp.integrations.dllm_plugin import PrefixRemaskingPolicy
from lsp_kernels import PrefixRule
from tests import oracle
from tests.lsp import suites
from tests.lsp.foreign import MASK, SIZE, STOP, Masked, canvas_of, prefix_loop, prompt_of
from tests.lsp.suites import Registry, Theirs, shown
from tests.support import ROOT

GUARDED = PrefixRule.guarded()
FORKS = {"d2Cache": ("eos", "d2cache"), "DLLM-AccelEval": ("eot", "accel_eval")}


@pytest.fixture(params=FORKS)
def fork(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Registry, str]]:
    """A suite with the documented file in its folder of strategies, and what it calls the end of a text."""
    (tmp_path / "lsp.py").write_text(shown(f"src/generation/lsp.py of {request.param}"))
    with suites.frames(tmp_path) as suite:
        yield suite, FORKS[request.param][0]


def expected(model: Masked, prompt: Tensor, length: int, block: int, **arguments: object) -> tuple[Tensor, int]:
    """One row by the oracle."""
    x, passes = prefix_loop(
        lambda ids: model(ids).logits, canvas_of(prompt, length)[0], block=block, start=prompt.size(1), **arguments
    )
    return x[prompt.size(1) :], passes


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("rule", [{}, {"floor": 0.5}, {"floor": None, "alpha": 0.3, "min_length": 2}])
def test_a_suite_commits_the_longest_stable_prefix(
    fork: tuple[Registry, str], shifted: bool, cached: bool, rule: dict
) -> None:
    suite, _ = fork
    prompts = prompt_of(batch=3)
    caches: list[suites.Cache] = []

    def cache_cls(config: object) -> suites.Cache:
        caches.append(suites.Cache(config))
        return caches[-1]

    settings = dict(gen_length=16, block_length=8, mask_token_id=MASK, rule=rule, alg="maskgit_plus", steps=16)
    record = suite.generate(
        Theirs(Masked(), shifted), prompts, strategy="lsp", cache_cls=cache_cls if cached else None, **settings
    )
    rows = [expected(Masked(), prompt[None], 16, 8, rule=replace(GUARDED, **rule)) for prompt in prompts]
    assert record[-1].generated_tokens.tolist() == [row.tolist() for row, _ in rows]
    commits = [sum(delta.transfer_index[b].numel() > 0 for delta in record.deltas) for b in range(3)]
    assert commits == [passes for _, passes in rows]
    assert not any(index.numel() == 0 for index in record.deltas[0].transfer_index)
    if cached:
        (cache,) = caches
        assert cache.heard.count("block") == 2
        assert cache.heard.count("stepped") == record.num_steps
        assert cache.heard.count("step") == record.num_steps + 2  # and once for each block when nothing is left


@pytest.mark.parametrize("shifted", [False, True])
def test_a_position_without_fresh_logits_waits(fork: tuple[Registry, str], shifted: bool) -> None:
    """A cache computes one row in each pass, that of the first mask: whatever the rule says, one token is committed."""

    class Narrow(suites.Cache):
        def rows(self, block_mask: Tensor, frame: suites.Frame) -> Tensor:
            first = (frame.generated_tokens == MASK) & ((frame.generated_tokens == MASK).cumsum(1) == 1)
            return torch.nn.functional.pad(first, (frame.prompts.size(1) - shifted, shifted))

        def on_step_start(self, block_mask: Tensor, frame: suites.Frame) -> None:
            self.active_q_mask = self.rows(block_mask, frame)

    prompts, everything = prompt_of(batch=2), {"alpha": 1.0, "floor": None}
    settings = dict(gen_length=8, block_length=4, mask_token_id=MASK, cache_cls=Narrow, rule=everything)
    record = fork[0].generate(Theirs(Masked(), shifted), prompts, strategy="lsp", **settings)
    assert record.num_steps == 8
    for prompt, row in zip(prompts, record[-1].generated_tokens, strict=True):
        canvas = canvas_of(prompt[None], 8)
        for place in range(6, 14):
            canvas[0, place] = Masked()(canvas).logits[0, place].argmax()
        assert row.tolist() == canvas[0, 6:].tolist()


def test_a_sequence_ends_at_its_first_stop_and_its_masks_stay(fork: tuple[Registry, str]) -> None:
    suite, end = fork
    prompts = prompt_of(batch=4)
    free = suite.generate(Theirs(Masked()), prompts, strategy="lsp", gen_length=16, block_length=8, mask_token_id=MASK)
    stop = int(free[-1].generated_tokens[1, 5])
    settings = {f"{end}_token_id": stop, f"stop_until_{end}": True, "mask_token_id": MASK}
    record = suite.generate(Theirs(Masked()), prompts, strategy="lsp", gen_length=16, block_length=8, **settings)
    for prompt, row in zip(prompts, record[-1].generated_tokens, strict=True):
        full, _ = expected(Masked(), prompt[None], 16, 8, rule=GUARDED, stops={stop})
        length = full.tolist().index(stop) + 1 if stop in full else 16
        assert row.tolist() == full[:length].tolist() + [MASK] * (16 - length)
    assert (record[-1].generated_tokens == MASK).any()


def test_ids_come_from_the_environment_as_the_suites_keep_them(
    fork: tuple[Registry, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, end = fork
    arguments = dict(strategy="lsp", gen_length=8, block_length=8)
    with pytest.raises(ValueError, match="Invalid mask_token_id: expected an id, here or in the environment variable"):
        suite.generate(Theirs(Masked()), prompt_of(), **arguments)
    monkeypatch.setenv("MASK_TOKEN_ID", str(MASK))
    with pytest.raises(ValueError, match=f"Invalid {end}_token_id: expected an id"):
        suite.generate(Theirs(Masked()), prompt_of(), **arguments, **{f"stop_until_{end}": True})
    monkeypatch.setenv(f"{end.upper()}_TOKEN_ID", str(STOP))
    record = suite.generate(Theirs(Masked()), prompt_of(), **arguments, **{f"stop_until_{end}": True})
    assert record.num_steps > 0


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("temperature", 0.5, "Invalid temperature: expected 0, as decoding is greedy, got 0.5"),
        ("threshold", 0.9, "Invalid threshold: expected none, as the longest stable prefix decides, got 0.9"),
        ("factor", 1.0, "Invalid factor: expected none"),
        ("gamma", 0.001, "Invalid gamma: expected none"),
        ("debias", True, "Invalid debias: expected none"),
        ("output_probs", True, "Invalid output_probs: expected none"),
        ("output_hidden_states", True, "Invalid output_hidden_states: expected none"),
        ("block_length", 5, "Invalid block_length: expected a divisor of gen_length = 8, got 5"),
        ("rule", {"snap": True}, "Invalid rule: expected a vocabulary with delimiters for snap=True"),
        ("cache_cls", "blind", "Invalid cache: expected logits for a mask of each sequence's block, got none"),
    ],
)
def test_what_asks_for_another_rule_is_refused(
    fork: tuple[Registry, str], argument: str, value: object, message: str
) -> None:
    class Blind(suites.Cache):
        def rows(self, block_mask: Tensor, frame: suites.Frame) -> Tensor:
            return torch.zeros_like(super().rows(block_mask, frame))

    good = dict(strategy="lsp", gen_length=8, block_length=8, mask_token_id=MASK, rule={"floor": 99.0})
    wrong = {argument: Blind if value == "blind" else value}
    with pytest.raises(ValueError, match=message):
        fork[0].generate(Theirs(Masked()), prompt_of(), **good | wrong)


@pytest.mark.parametrize("name", FORKS)
def test_an_import_that_fails_is_not_passed_over(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lsp.py").write_text(shown(f"src/generation/lsp.py of {name}"))
    monkeypatch.setitem(sys.modules, f"lsp.integrations.{FORKS[name][1]}", None)
    with pytest.raises(RuntimeError, match="the strategy lsp cannot be imported"), suites.frames(tmp_path):
        pass
    (tmp_path / "lsp.py").write_text("import nobody_has_this\n")
    with suites.frames(tmp_path) as suite, pytest.raises(NotImplementedError):  # so it would have been
        suite.generate(None, None, strategy="lsp")


PROMPT, ANSWER = "Use 3, 5 and 7 to make 15.\n", "First 7 + 5 = 12, then 12 + 3 = 15."


def test_parallel_bench_gets_answers_passes_and_history() -> None:
    with suites.parallel_bench(shown("model/__init__.py of ParallelBench")) as load_model:
        model = load_model("tiny", accel_framework="lsp")
        output = model.generate(PROMPT, gen_config={"max_tokens": 32}, output_history=True)
        with pytest.raises(ValueError, match="Model tiny is not supported"):
            load_model("tiny", accel_framework="transformers")
    (answer,) = lsp.generate(lsp.load("tiny"), PROMPT, max_new_tokens=32)
    assert (output.output, output.nfe) == (ANSWER, answer.passes)
    assert output.output_ids.tolist() == [answer.tokens]
    assert output.decoding_order == answer.committed_in
    assert len(output.history) == answer.passes
    assert output.history[-1].startswith(ANSWER)
    assert model.num_workers == 0
    assert (output.input_ids[0] >= 0).all()


def test_parallel_bench_runs_any_scheduler_with_its_settings() -> None:
    with suites.parallel_bench(shown("model/__init__.py of ParallelBench")) as load_model:
        model = load_model("tiny", accel_framework="lsp")
        config = {"max_tokens": 32, "scheduler": "threshold", "set": ["p=0.7"], "block_length": 8}
        output = model.generate(PROMPT, gen_config=config)
    threshold = lsp.Threshold(0.7)
    (answer,) = lsp.generate(lsp.load("tiny"), PROMPT, max_new_tokens=32, scheduler=threshold, block_length=8)
    assert (output.output, output.nfe, output.history) == (answer.text, answer.passes, None)


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_prefix": "First"}, "Invalid output_prefix: expected None, as answers begin empty, got 'First'"),
        ({"gen_config": {"scheduler": "nobody"}}, "Invalid scheduler"),
        ({"gen_config": {"set": ["nothing=1"]}}, "Invalid setting 'nothing=1' of lsp"),
        ({"gen_config": {"remasking": "random"}}, "remasking"),
    ],
)
def test_parallel_bench_is_told_what_cannot_be_done(arguments: dict, message: str) -> None:
    with suites.parallel_bench(shown("model/__init__.py of ParallelBench")) as load_model:
        model = load_model("tiny", accel_framework="lsp")
        with pytest.raises((ValueError, TypeError), match=message):
            model.generate(PROMPT, **arguments)


def steps_of_the_plugin(logits_of: object, length: int, **names: object) -> tuple[list[int], list[int]]:
    """The documented step until `length` tokens or a stop are there: the text, and how many each step committed."""
    create, step = shown("a step with dllm-plugin").split("\n\n")[1].split("\n", 1)
    imports = shown("a step with dllm-plugin").split("\n\n")[0]
    scope = {"mask_id": MASK, "eos_id": STOP, "draft": (MASK,) * 32, "text": [], **names}
    exec(f"{imports}\n{create}", scope)
    counts: list[int] = []
    while len(scope["text"]) < length and STOP not in scope["text"]:
        scope["logits"] = logits_of(scope["text"], scope["draft"])
        before = len(scope["text"])
        exec(step, scope)
        counts.append(len(scope["text"]) - before)
        assert len(scope["draft"]) == 32
    return scope["text"], counts


def sliding(model: Masked, prompt: Tensor) -> object:
    """Logits of the draft after the prompt and the text so far."""

    def logits(text: list[int], draft: tuple[int, ...]) -> Tensor:
        return model(torch.tensor([[*prompt[0].tolist(), *text, *draft]])).logits[0, -len(draft) :]

    return logits


def test_the_plugin_commits_a_prefix_in_every_step_and_the_block_slides() -> None:
    model, prompt = Masked(), prompt_of()
    with suites.dllm_plugin():
        text, counts = steps_of_the_plugin(sliding(model, prompt), 20)
    assert min(counts) >= 1
    assert 1 < max(counts) < 32
    expected_text: list[int] = []
    for count in counts:  # the same by the oracle, step by step
        logits = sliding(model, prompt)(expected_text, (MASK,) * 32)
        top = torch.softmax(logits.double(), -1).topk(2).values.log()
        tokens = logits.argmax(-1).tolist()
        length, _ = oracle.select((top[:, 0] - top[:, 1]).tolist(), tokens, GUARDED, set(), {STOP})
        assert length == count
        expected_text += tokens[:length]
    assert text == expected_text


def test_the_plugin_keeps_what_is_decoded_and_commits_nothing_after_a_stop() -> None:
    policy = PrefixRemaskingPolicy(MASK, stops=[STOP])
    logits = torch.zeros(32, SIZE)
    logits[torch.arange(32), torch.arange(32)] = 9.0
    with suites.dllm_plugin():
        result = policy.apply(input_draft=[7, MASK, 8] + [MASK] * 29, logits=logits)
        assert result.committed_token_ids[:3] == (7, 1, 8)
        assert MASK not in result.committed_token_ids
        sharp = logits.clone()
        sharp[4] = 0
        sharp[4, STOP] = 20.0
        result = policy.apply(input_draft=[MASK] * 32, logits=sharp.tolist())
        assert result.committed_token_ids == (0, 1, 2, 3, STOP)
        assert result.next_input_block == (MASK,) * 32
        done = tuple(range(32))
        result = policy.apply(input_draft=done, logits=logits)
        assert (result.committed_token_ids, result.next_input_block) == (done, (MASK,) * 32)
        other = policy.apply(input_draft=[3] * 32, logits=logits, remasking_config={"mask_token_id": 3})
        assert (other.committed_token_ids, other.next_input_block) == ((0, 1, 2), (3,) * 32)  # 3 is never chosen


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits": None}, "Invalid logits: expected those of the block, got None"),
        ({"logits": torch.zeros(31, SIZE)}, r"Invalid shape of logits: expected \[32, V\]"),
        ({"logits": torch.full((32, SIZE), torch.nan)}, "Invalid logits: expected numbers, got NaN"),
        (
            {"remasking_config": {"commit_confidence_threshold": 0.9}},
            "Invalid remasking_config: expected mask_token_id",
        ),
        ({"remasking_config": {"mask_token_id": -1}}, "Invalid mask_token_id"),
    ],
)
def test_the_plugin_is_told_what_is_wrong(arguments: dict, message: str) -> None:
    policy = PrefixRemaskingPolicy(MASK)
    good = {"input_draft": [MASK] * 32, "logits": torch.zeros(32, SIZE), "remasking_config": {"denoise_steps": 8}}
    with suites.dllm_plugin(), pytest.raises(ValueError, match=message):
        policy.apply(**good | arguments)


def real(variable: str, tmp_path: Path, script: str, *arguments: str) -> dict:
    """What a script prints as JSON in a copy of the real codebase, which an environment variable names."""
    if variable not in os.environ:
        pytest.skip(f"{variable} names no folder of the real one; the stand-in was tested")
    folder = tmp_path / "theirs"
    shutil.copytree(os.environ[variable], folder)
    for path, text in json.loads(arguments[0]).items() if arguments else ():
        (folder / path).write_text(text)
    python = os.environ.get("LSP_SUITES_PYTHON", sys.executable)
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "MASK_TOKEN_ID": str(MASK)}
    done = subprocess.run([python, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


REAL_FORK = """
import json, torch
import src.generation, src.cache
from src.models import LLaDAModelLM
from src.models.llada.configuration_llada import LLaDAConfig

torch.manual_seed(0)
size = 126464
model = LLaDAModelLM(LLaDAConfig(
    d_model=32, n_heads=2, n_kv_heads=2, n_layers=2, vocab_size=size, embedding_size=size, max_sequence_length=128,
    mlp_hidden_size=64, rope=True, activation_type="silu", block_type="llama", layer_norm_type="rms",
    include_bias=False, include_qkv_bias=False, weight_tying=False, alibi=False, flash_attention=False,
    attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0, init_device="cpu", rope_theta=1e4,
    rms_norm_eps=1e-5, input_emb_norm=False, scale_logits=False)).eval()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.5)
prompts = torch.randint(100, 1000, (2, 8))
settings = dict(strategy="lsp", gen_length=16, block_length=8, mask_token_id=59, alg="maskgit_plus",
                ignore_unknown_args="ignore")
found = {}
for name, cache in (("none", None), ("prefix", src.cache.PrefixCache)):
    record = src.generation.generate(model, prompts, cache_cls=cache, **settings)
    found[name] = [record.num_steps, record[-1].generated_tokens.tolist()]

from lsp.integrations.llada import generate
out = torch.cat([generate(model, p[None], gen_length=16, block_length=8, mask_id=59) for p in prompts])
found["ours"] = out[:, 8:].tolist()
print(json.dumps(found))
"""


@pytest.mark.parametrize(("name", "variable"), [("d2Cache", "LSP_D2CACHE"), ("DLLM-AccelEval", "LSP_ACCEL_EVAL")])
def test_the_real_suite_finds_and_runs_the_strategy(name: str, variable: str, tmp_path: Path) -> None:
    files = {"src/generation/lsp.py": shown(f"src/generation/lsp.py of {name}")}
    found = real(variable, tmp_path, REAL_FORK, json.dumps(files))
    assert found["none"][1] == found["ours"]
    for passes, rows in (found["none"], found["prefix"]):
        assert 2 <= passes <= 16
        assert not any(MASK in row for row in rows)


REAL_BENCH = """
import json, sys, types
for name in ("Anthropic", "Dream", "Mercury", "Llada", "Trado", "Transformers", "vllm"):  # need GPUs, keys, packages
    module = types.ModuleType(f"model.{name.lower()}_model")
    setattr(module, name + "Model", None)
    sys.modules[module.__name__] = module
from model import load_model
model = load_model("tiny", accel_framework="lsp")
output = model.generate("Use 3, 5 and 7 to make 15.\\n", gen_config={"max_tokens": 32}, output_history=True)
print(json.dumps([output.output, output.nfe, output.output_length, len(output.history), output.decoding_order]))
"""


def test_the_real_parallel_bench_loads_and_runs_the_model(tmp_path: Path) -> None:
    path = Path(os.environ.get("LSP_PARALLEL_BENCH", tmp_path), "model/__init__.py")
    source = path.read_text() if path.is_file() else ""
    chain = '    if model_name in ("mercury"'
    patched = source.replace(chain, shown("model/__init__.py of ParallelBench") + chain)
    found = real("LSP_PARALLEL_BENCH", tmp_path, REAL_BENCH, json.dumps({"model/__init__.py": patched}))
    (answer,) = lsp.generate(lsp.load("tiny"), PROMPT, max_new_tokens=32)
    assert found[:2] == [ANSWER, answer.passes]
    assert found[3:] == [answer.passes, answer.committed_in]


REAL_PLUGIN = """
import json, torch
from lsp.integrations.dllm_plugin import PrefixRemaskingPolicy
from vllm_dllm_plugin.remasking import RemaskingPolicy, RemaskStepResult, remask_after_block_forward

policy = PrefixRemaskingPolicy(59, stops=[58])
assert isinstance(policy, RemaskingPolicy)
logits = torch.zeros(32, 60)
logits[torch.arange(32), torch.arange(32)] = torch.linspace(9, 0, 32)
result = remask_after_block_forward(input_draft=(59,) * 32, logits=logits, policy=policy)
assert isinstance(result, RemaskStepResult)
print(json.dumps([result.committed_token_ids, result.next_input_block]))
"""


def test_the_real_plugin_takes_the_policy(tmp_path: Path) -> None:
    committed, following = real("LSP_DLLM_PLUGIN", tmp_path, REAL_PLUGIN)
    assert committed == list(range(len(committed)))
    assert 0 < len(committed) < 32
    assert following == [MASK] * 32
