"""The lsp command: what it prints where, one line for every error, exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import lsp

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("transformers")

from lsp.cli import options, settings
from lsp.evaluation import grid, results
from lsp.tiny.tasks import generate, sandbox, verdict
from lsp_kernels import PrefixRule
from tests.lsp.checkpoints import llada, qwen3
from tests.lsp.commands import Ran, load_model, process

PROMPT, NEW = "Use 3, 5 and 7 to make 15.\n", ("--max-new-tokens", "24")
FLOOR_3 = replace(PrefixRule.guarded(), floor=3.0)
ANSWER = "First 7 + 5 = 12, then 12 + 3 = 15."
PRESET = lsp.LongestStablePrefix().options
ROOT = Path(__file__).parents[2]


# Help


def test_help_names_every_command_and_every_option_is_explained(run: Callable[..., Ran]) -> None:
    from typer.main import get_command

    from lsp.cli.app import app

    commands = get_command(app).commands
    assert run().out == run("--help").out
    for name, command in commands.items():
        assert f"  {name} " in run("--help").out
        assert f"lsp {name}" in run(name, "--help").out.partition("Usage")[2].partition("\n")[2]  # an example
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
    assert run("--version").out.startswith("lsp ")


def test_info_names_backends_the_model_and_what_can_be_set(run: Callable[..., Ran]) -> None:
    out = run("info").out
    for words in ("commit_prefix", "2.08 M parameters", "threshold", "p=0.9", "islands=5.0, stuck=best"):
        assert words in out
    assert "unavailable" not in out


@pytest.mark.parametrize("document", ["README.md", "docs/cli.md"])
def test_documented_commands_print_what_is_written_below_them(
    run: Callable[..., Ran], document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, *commands = (ROOT / document).read_text("utf-8").split("\n$ lsp ")
    for command, _, printed in (text.partition("\n") for text in commands):
        ran = run(*shlex.split(command))
        below = f"{printed}\n".partition("```")[0]
        cost = re.sub(r", [\d.]+ s\n", "", ran.err) if " positions, " in below else ""
        assert below.startswith(ran.out + cost or ran.err)
    assert commands


# Generate


def test_text_goes_to_stdout_and_its_cost_to_stderr(run: Callable[..., Ran]) -> None:
    ran = run("generate", PROMPT, *NEW)
    assert (ran.code, ran.out) == (0, ANSWER + "\n")
    assert "passes, " in ran.err
    assert "tokens per pass, " in ran.err


def test_json_is_what_generate_returns(run: Callable[..., Ran]) -> None:
    other = "Use 2, 9 and 14 to make 4.\n"
    ran = run(
        "generate", PROMPT, other, "--json", *NEW, "--scheduler", "threshold", "--set", "p=0.8", "--cache", "none"
    )
    model, tokenizer = load_model("tiny", device="cpu")
    wanted = lsp.generate(
        model, [PROMPT, other], tokenizer=tokenizer, max_new_tokens=24, scheduler=lsp.Threshold(0.8), cache="none"
    )
    assert ran.err == ""
    for line, answer in zip(ran.out.splitlines(), wanted, strict=True):
        got = json.loads(line)
        assert set(got.pop("seconds")) == {"model", "head", "host"}
        assert got.pop("options")["cache"] == "none"
        assert got.pop("scheduler") == "Threshold(p=0.8)"
        assert got.pop("steps") == answer.committed_in  # the old name
        assert got.pop("fills") == []
        assert got == {name: getattr(answer, name) for name in got}
        assert len(got) == 8


def test_json_has_log_probabilities_on_request(
    run: Callable[..., Ran], fails: Callable[[int, str, object], None]
) -> None:
    given = [PROMPT, "--json", *NEW, "--temperature", 0.5]
    got = json.loads(run("generate", *given, "--logprobs").out)
    model, tokenizer = load_model("tiny", device="cpu")
    (answer,) = lsp.generate(model, PROMPT, tokenizer=tokenizer, max_new_tokens=24, temperature=0.5, logprobs=True)
    assert (got["tokens"], got["logprobs"]) == (answer.tokens, answer.logprobs.tolist())
    assert len(got["logprobs"]) > 5
    fails(2, "Invalid output: expected --json with --logprobs, got --logprobs alone", "generate", PROMPT, "--logprobs")


def test_what_a_checkpoint_does_not_say_is_said_by_options(
    run: Callable[..., Ran], fails: Callable[..., None], tmp_path: Path
) -> None:
    """A model in Qwen3's own layout, with the tokenizer of the embedded one."""
    tiny = lsp.load("tiny")
    for file in tiny.source.glob("*token*"):
        shutil.copy(file, tmp_path)
    case, mask = qwen3(model_type="qwen3", vocab_size=tiny.config.vocab_size, mask_token_id=None), tiny.config.mask_id
    given = ["generate", PROMPT, "--json", *NEW, "--model", case.save(tmp_path), "--mask-id", mask]
    fails(2, "Invalid shifted", *given)
    tokens = [json.loads(run(*given, how).out)["tokens"] for how in ("--shifted", "--not-shifted")]
    for shifted, got in zip((True, False), tokens, strict=True):
        (answer,) = lsp.generate(lsp.load(tmp_path, mask_id=mask, shifted=shifted), PROMPT, max_new_tokens=24)
        assert got == answer.tokens
    assert tokens[0] != tokens[1]


def test_the_batch_size_says_how_many_prompts_are_decoded_at_a_time(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [PROMPT, "Use 2, 9 and 14 to make 4.\n", PROMPT]
    together = run("generate", *prompts, *NEW, "--cache", "none").out
    rows = rows_of_caches(monkeypatch)
    assert run("generate", *prompts, *NEW, "--cache", "none", "--batch-size", 2).out == together
    assert rows == [2]


def rows_of_caches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every cache that is made from now on."""
    rows: list[int] = []
    new_cache = lsp.models.Transformer.new_cache

    def noted(model: lsp.models.Transformer, batch: int, capacity: int) -> object:
        rows.append(batch)
        return new_cache(model, batch, capacity)

    monkeypatch.setattr(lsp.models.Transformer, "new_cache", noted)
    return rows


def test_a_stream_prints_the_same_text(run: Callable[..., Ran]) -> None:
    assert run("generate", PROMPT, "--stream", *NEW).out == ANSWER + "\n"


def test_steps_mark_the_passes(run: Callable[..., Ran]) -> None:
    out = run("generate", PROMPT, "--by-pass", *NEW).out
    assert out.startswith("[1]First")
    assert "[2]" in out
    assert "\x1b" not in out


def test_a_prompt_comes_from_a_file_stdin_or_a_chat(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT)
    assert run("generate", "--file", tmp_path / "prompt.txt", *NEW).out == ANSWER + "\n"
    assert run("generate", "--file", "-", *NEW, stdin=PROMPT).out == ANSWER + "\n"
    assert run("generate", "--chat", PROMPT.strip(), *NEW).out == ANSWER + "\n"
    both = run("generate", PROMPT, "--file", "-", *NEW, stdin=PROMPT)
    assert both.out == f"{ANSWER}\n\n{ANSWER}\n"
    assert both.err.count("for all 2 prompts") == 2


@pytest.mark.abuse("command line")
@pytest.mark.parametrize("prompt", ["", "[bold]x[/]", "[/]", "ü漢字🙂", "\\[x", "a\r\nb"])
def test_any_prompt_is_taken_literally(run: Callable[..., Ran], prompt: str) -> None:
    model, tokenizer = load_model("tiny", device="cpu")
    (wanted,) = lsp.generate(model, prompt, tokenizer=tokenizer, max_new_tokens=4)
    ran = run("generate", "--no-chat", "--max-new-tokens", 4, "--", prompt)
    assert (ran.code, ran.out) == (0, f"{wanted.text}\n")


def test_the_embedded_model_gets_its_template_by_default(run: Callable[..., Ran]) -> None:
    assert run("generate", PROMPT.strip(), *NEW).out == ANSWER + "\n"
    assert run("generate", "--no-chat", PROMPT.strip(), *NEW).out != ANSWER + "\n"


def test_an_empty_answer_says_what_the_embedded_model_knows(run: Callable[..., Ran]) -> None:
    ran = run("generate", PROMPT, "--stop", "First", *NEW)
    assert ran.out.strip() == ""
    assert "The answer is empty. The embedded model knows a few tasks and no more" in ran.err
    assert "The answer is empty" not in run("generate", PROMPT, *NEW).err


@pytest.mark.abuse("command line")
def test_markup_in_an_answer_is_printed_as_it_is(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    from lsp.tracing import terminal

    pieces = terminal.pieces_of
    monkeypatch.setattr(terminal, "pieces_of", lambda *given: ["[bold]", "[/]", *pieces(*given)[2:]])
    assert "[bold]" in (out := run("generate", PROMPT, "--by-pass", *NEW).out)
    assert "[/]" in out


def test_options_reach_the_loop(run: Callable[..., Ran]) -> None:
    given = ["--block-length", 8, "--lookahead", 4, "--refresh-every", 3, "--no-stop-early", "--temperature", 0.5]
    given += ["--no-refresh-scattered", "--recompute", 2, "--top-p", 0.9, "--top-k", 7, "--cfg-scale", 0.25]
    got = json.loads(run("generate", PROMPT, "--json", *NEW, *given, "--seed", 3, "--stop", "then").out)
    assert got["options"] == {
        "block_length": 8,
        "blocks": "fixed",
        "delimiter_confidence": 0.3,
        "lookahead": 4,
        "cache": "prefix",
        "recompute": 2,
        "refresh_every": 3,
        "refresh_scattered": False,
        "stop_early": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "cfg_scale": 0.25,
        "graph": False,
    }
    assert "then" not in got["text"]


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("lsp", [], lsp.LongestStablePrefix()),
        ("paper", ["alpha=0.1"], lsp.LongestStablePrefix(PrefixRule(alpha=0.1))),
        (None, ["floor=3", "islands=5", "stuck=best"], lsp.LongestStablePrefix(FLOOR_3, 5.0, "best")),
        (None, ["islands=none"], lsp.LongestStablePrefix(islands=None, stuck="best")),
        ("scattered", ["window=4", "snap=false"], lsp.ScatteredMargin(PrefixRule(window=4, snap=False))),
        ("prophet", ["thresholds=3,2,1", "region=8"], lsp.Prophet((3.0, 2.0, 1.0), 8)),
        ("prophet", ["region=none"], lsp.Prophet()),
        ("topk", ["k=3"], lsp.TopK(3)),
    ],
)
def test_settings_fill_the_scheduler_and_its_rule(name: str | None, given: list[str], wanted: object) -> None:
    assert settings.scheduler(name, given) == wanted


# Errors


@pytest.mark.abuse("command line")
@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("No such command 'gen'", ["gen"]),
        ("--nope", ["generate", "--nope", "x"]),
        ("--max-new-tokens", ["generate", "x", "--max-new-tokens", "x"]),
        ("expected a PROMPT or --file FILE, got neither", ["generate"]),
        ("Invalid value for '--batch-size'", ["generate", "x", "--batch-size", "0"]),
        ("Invalid value for '--batch-size'", ["compare", "--batch-size", "2.5"]),
        ("at most one of --stream, --by-pass and --json", ["generate", "x", "--stream", "--json"]),
        ("expected a single one with --stream, got 2", ["generate", "x", "y", "--stream"]),
        ("Invalid scheduler: expected one of lsp, paper, fixed", ["generate", "x", "--scheduler", "best"]),
        (
            "Invalid setting 'q=1' of threshold: expected name=value with p=0.9",
            ["generate", "x", "--scheduler", "threshold", "--set", "q=1"],
        ),
        ("Invalid setting 'floor' of lsp: expected name=value with islands=5.0", ["generate", "x", "--set", "floor"]),
        ("Invalid floor: expected a number or none, got 'x'", ["generate", "x", "--set", "floor=x"]),
        ("Invalid window: expected an integer, got '1.5'", ["generate", "x", "--set", "window=1.5"]),
        ("Invalid snap: expected true or false, got '2'", ["generate", "x", "--set", "snap=2"]),
        ("Invalid stuck: expected first or best, got 'x'", ["generate", "x", "--set", "stuck=x"]),
        (
            "Invalid thresholds: expected 3 numbers with commas",
            ["generate", "x", "--scheduler", "prophet", "--set", "thresholds=1,2"],
        ),
        ("Invalid p: expected 0 < p <= 1, got 2.0", ["generate", "x", "--scheduler", "threshold", "--set", "p=2"]),
        ("Invalid cache: expected 'prefix', 'block', 'dual' or 'none'", ["generate", "x", "--cache", "some"]),
        ("Invalid cache: 'dual' expects a block_length", ["generate", "x", "--cache", "dual"]),
        ("Invalid blocks: 'sliding' expects a block_length", ["generate", "x", "--blocks", "sliding"]),
        ("Invalid max_new_tokens: expected at most 638", ["generate", "x", "--max-new-tokens", "999"]),
        ("Invalid delimiters: expected text, code", ["generate", "x", "--delimiters", "foo"]),
        ("Invalid device: expected one such as cpu", ["generate", "x", "--device", "foo"]),
        ("Invalid dtype: expected float32", ["generate", "x", "--dtype", "foo"]),
        ("expected text in UTF-8, got 'a\\udcff'", ["generate", "a\udcff"]),
        ("expected a name that ends in .html, .jsonl, .svg, .gif, got out.txt", ["trace", "out.txt"]),
        ("Invalid task: expected one of arithmetic", ["trace", "out.jsonl", "--task", "foo"]),
        ("Invalid index: expected at least 0 and at most 4999, got -1", ["trace", "out.jsonl", "--index", "-1"]),
        ("at most 4999, got 99999999", ["trace", "out.jsonl", "--index", "99999999"]),
        ("Invalid n: expected at most 5000 problems of a task, got 99999999", ["compare", "--problems", "99999999"]),
        ("expected a PROMPT or --file FILE, got both", ["trace", "out.jsonl", "x", "--file", __file__]),
        ("Invalid --from: expected a page", ["trace", "out.jsonl", "--from", "x"]),
        ("expected JSON lines of 'lsp trace 3'", ["trace", "out.html", "--from", __file__]),
        ("Missing argument 'OUT'", ["trace"]),
    ],
)
def test_bad_usage_is_one_line_and_code_2(fails: Callable[..., None], message: str, arguments: list[str]) -> None:
    fails(2, message, *arguments)


@pytest.mark.abuse("command line")
@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("/nope: No such file or directory", ["generate", "--file", "/nope"]),
        ("got /nope: no such folder", ["generate", "x", "--model", "/nope"]),
        ("/nope: no such folder", ["trace", "/nope/out.html"]),
        ("No such file or directory", ["trace", "out.html", "--from", "nope.jsonl"]),
    ],
)
def test_a_failure_is_one_line_and_code_1(fails: Callable[..., None], message: str, arguments: list[str]) -> None:
    fails(1, message, *arguments)


@pytest.mark.abuse("command line")
def test_a_file_that_is_not_text_and_a_model_without_a_tokenizer_are_named(
    fails: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    fails(2, "bytes: expected text in UTF-8", "generate", "--file", tmp_path / "bytes")
    fails(2, "Invalid model: expected a tokenizer in", "generate", "x", "--model", llada().save(tmp_path))


@pytest.mark.abuse("command line")
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("no room\nat all"), 1, "no room"),
        (ImportError("pip install it"), 1, "pip install it"),
        (AssertionError(), 1, "AssertionError"),
    ],
)
def test_whatever_happens_there_is_no_traceback(
    fails: Callable[..., None], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(lsp, "generate", broken)
    fails(code, f"lsp: error: {message}\n", "generate", "x")


@pytest.mark.abuse("command line")
def test_a_failure_in_the_middle_says_what_was_committed(
    fails: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = load_model("tiny", device="cpu")
    inner, calls = type(model).forward, []

    def broken(self: torch.nn.Module, *given: object, **more: object) -> torch.Tensor:
        calls.append(0)
        return inner(self, *given, **more) * (1 if len(calls) < 3 else torch.nan)

    monkeypatch.setattr(type(model), "forward", broken)
    arguments = ["generate", PROMPT, *NEW, "--scheduler", "fixed"]
    fails(1, "NaN in sequence 0, pass 2; nothing of this pass was committed; before it: 'First 7'", *arguments)


def test_debug_shows_where_an_error_comes_from(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="got neither"):
        run("--debug", "generate")
    monkeypatch.setenv("LSP_DEBUG", "1")
    with pytest.raises(ValueError, match="got neither"):
        run("generate")


@pytest.mark.abuse("command line")
def test_a_closed_pipe_is_left_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    with process("info", stdout=write) as running:
        os.close(write)
        assert running.stderr.read() == ""
    assert running.returncode == 1


def test_without_the_extra_the_package_imports_and_the_command_says_what_is_missing() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'matplotlib']))\n"
    with process("--help", code=blocked + "import lsp, lsp.__main__; lsp.__main__.main()") as running:
        out, err = running.communicate()
    assert (running.returncode, out) == (1, "")
    assert err == "lsp: error: the lsp command needs typer: pip install 'lsp-kernels[lsp]'\n"


# Trace


def test_a_trace_and_its_rival_are_written_and_become_a_page(run: Callable[..., Ran], tmp_path: Path) -> None:
    out, rival, page = tmp_path / "a.jsonl", tmp_path / "a.full.jsonl", tmp_path / "a.html"
    assert run("trace", out, PROMPT, *NEW).out == f"wrote {out}\nwrote {rival}\n"
    first, second = lsp.Trace.load(out), lsp.Trace.load(rival)
    assert first.text == ANSWER
    assert first.scheduler.startswith("LongestStablePrefix")
    assert second.scheduler == "Full()"
    assert second.passes > 2 * first.passes  # the default differs visibly
    assert run("trace", page, "--from", out, "--from", rival).out == f"wrote {page}\n"
    assert "<html" in page.read_text("utf-8")


def test_without_a_prompt_a_held_out_problem_is_traced(run: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    ran = run("trace", out, "--task", "countdown", "--index", 1, "--against", "none", *NEW)
    assert ran.out == f"wrote {out}\n"
    trace, (_, problem) = lsp.Trace.load(out), generate("countdown", 2)
    assert "".join(trace.pieces[token] for token in trace.prompt) == problem.prompt
    assert trace.verdict in ("right", "wrong")
    assert trace.verdict == verdict(problem, trace.text)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_page_is_written_at_once(run: Callable[..., Ran], tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    assert run("trace", page, "--chat", PROMPT, *NEW, "--against", "threshold").out == f"wrote {page}\n"
    assert "<html" in page.read_text("utf-8")


def test_a_picture_is_of_the_pass_that_is_asked_for(run: Callable[..., Ran], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = []
    for number in (1, 2):
        picture = tmp_path / f"{number}.svg"
        assert run("trace", picture, PROMPT, *NEW, "--pass", number).out == f"wrote {picture}\n"
        pictures.append(picture.read_text("utf-8"))
    assert all("<svg" in picture for picture in pictures)
    assert pictures[0] != pictures[1]


@pytest.mark.abuse("command line")
def test_a_taken_port_is_named_before_a_model_is_loaded(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from lsp.play.server import bound

    monkeypatch.setattr(options, "load_model", None)
    with bound(0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        ran = run("play", "--port", port)
    assert (ran.code, ran.err) == (1, f"lsp: error: 127.0.0.1:{port}: Address already in use\n")


def test_answers_are_as_long_as_asked_or_as_the_model_and_the_task_need() -> None:
    assert [options.region(model, None) for model in ("tiny", "other")] == [96, 128]
    assert [options.region(model, None, 432) for model in ("tiny", "other")] == [432, 432]
    assert [options.region(model, None, 96) for model in ("tiny", "other")] == [96, 128]
    assert options.region("tiny", 24, 432) == 24


# Compare and tune


def test_compare_writes_what_it_shows(run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_made = rows_of_caches(monkeypatch)
    files = [tmp_path / f"t{ending}" for ending in (".md", ".csv", ".json")]
    given = ["--problems", 2, "--batch", 2, "--flips", 1, "--tail", "dropped", "--task", "countdown", *NEW]
    given += ["--batch-size", 1]
    outs = [argument for file in files for argument in ("--out", file)]
    ran = run("compare", *given, *outs, "--plot", tmp_path / "t.svg")
    assert ran.code == 0, ran.err
    assert set(rows_made) == {1}
    written = json.loads(files[2].read_text())
    assert (written["batch"], written["batch_size"]) == (2, 1)
    rows = written["rows"]
    for row in rows:
        assert row["scheduler"] in ran.out
        assert f"| {row['scheduler']} |" in files[0].read_text()
    assert len(files[1].read_text().splitlines()) == 1 + len(rows)
    assert (tmp_path / "t.svg").stat().st_size > 1000


def test_progress_that_goes_to_a_file_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lsp.cli import compare

    clock = iter([0.0, 4.0, 11.0, 11.0, 12.0, 13.0])  # the beginning, then one or two readings a call
    monkeypatch.setattr(compare.time, "monotonic", lambda: next(clock))
    with compare.bar("sums", 4) as advance:
        for _ in range(4):
            advance()
    assert capsys.readouterr() == ("", "sums: 2 of 4\n")


def test_compare_takes_a_file_of_problems(run: Callable[..., Ran], tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    problem = {"prompt": "Use 2, 9 and 14 to make 21.\n", "answer": "First 14 + 9 = 23, then 23 - 2 = 21."}
    file.write_text(json.dumps(problem) + "\n")
    ran = run("compare", "--task", file, "--flips", 0, "--tail", "dropped", "--out", tmp_path / "t.json", *NEW)
    assert ran.code == 0, ran.err
    read = json.loads((tmp_path / "t.json").read_text())
    assert (read["problems"], read["rows"][0]["task"], read["rows"][0]["solved"]) == (1, "sums", 1)


def test_tune_goes_on_and_refuses_other_results(
    run: Callable[..., Ran], fails: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = grid.grid()
    preset = grid.describe(lsp.LongestStablePrefix(), PRESET)
    few = {"Full", "Threshold", "Threshold block_length=16 cache=block", preset}
    monkeypatch.setattr(grid, "grid", lambda: [candidate for candidate in everything if candidate.name in few])
    first, second = tmp_path / "dev.jsonl", tmp_path / "test.jsonl"
    given = ["--problems", 2, "--task", "countdown", *NEW]
    ran = run("tune", first, *given)
    assert ran.code == 0, ran.err
    assert "| the best Full: Full |" in ran.out
    with first.open("a") as file:
        file.write('{"cut off')
    assert run("tune", first, *given).out == ran.out
    rows = rows_of_caches(monkeypatch)
    assert run("tune", tmp_path / "one_by_one.jsonl", *given, "--batch-size", 1).code == 0
    assert set(rows) == {1}
    assert len(first.read_text().splitlines()) == 1 + 4
    fails(2, "expected results with", "tune", first, *given, "--seed", 3)
    assert run("tune", second, *given, "--split", "test", "--from", first, "--plot", tmp_path / "t.png").code == 0
    assert {row["split"] for row in results.read(second)} == {"test"}


@pytest.mark.abuse("command line")
def test_answers_that_cannot_be_judged_end_a_comparison_and_keep_what_was_measured(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "CHILD", ["/no/such/python"])
    out, given = tmp_path / "t.json", ["--problems", 1, "--flips", 0, "--tail", "dropped", *NEW]
    ran = run("compare", "--task", "countdown", "--task", "code", "--task", "sudoku", *given, "--out", out)
    assert ran.code == 1
    assert ran.err.endswith("lsp: error: Could not judge programs: the process that runs them cannot start: "
                            "/no/such/python: No such file or directory\n")  # fmt: skip
    rows = json.loads(out.read_text())["rows"]
    first, second = ([row for row in rows if row["task"] == task] for task in ("countdown", "code"))
    assert len(first) == len(second) > 0
    assert not [row for row in rows if row["task"] == "sudoku"]
    assert all(row["accuracy"] is not None for row in first)
    assert all(row["accuracy"] is row["solved"] is None and row["passes"] > 0 for row in second)
    assert "? (not judged)" in ran.out


@pytest.mark.abuse("command line")
def test_answers_that_cannot_be_judged_end_a_grid_and_keep_its_rows(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "CHILD", ["/no/such/python"])
    preset = grid.describe(lsp.LongestStablePrefix(), PRESET)
    few = [candidate for candidate in grid.grid() if candidate.name in ("Full", preset)]
    monkeypatch.setattr(grid, "grid", lambda: few)
    out = tmp_path / "r.jsonl"
    ran = run("tune", out, "--task", "countdown", "--task", "code", "--problems", 1, *NEW)
    assert ran.code == 1
    assert "lsp: error: Could not judge programs" in ran.err
    assert {row["task"] for row in results.read(out)} == {"countdown"}


@pytest.mark.abuse("command line")
@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("Invalid task: expected arithmetic", ["compare", "--task", "chess"]),
        ("Invalid tail: expected dropped, decoded, both", ["compare", "--tail", "half"]),
        ("expected a name that ends in .md, .csv, .json", ["compare", "--out", "t.txt"]),
        ("expected a name that ends in .png, .svg, .pdf", ["compare", "--plot", "t.gif"]),
        ("expected different names", ["compare", "--task", "code", "--task", "code"]),
        ("Invalid judge: expected number", ["compare", "--judge", "taste"]),
        ("expected a name that ends in .jsonl", ["tune", "t.json"]),
        ("expected a result of lsp tune", ["tune", "t.jsonl", "--from", ROOT / "LICENSE"]),
        ("expected a name that ends in .html", ["demo", "--page", "x.txt"]),
        ("Invalid --lookahead: expected an integer or none", ["generate", "x", "--lookahead", "far"]),
        ("Invalid --pass: expected at most ", ["trace", "t.svg", "--against", "none", "--pass", "99"]),
    ],
)
def test_bad_usage_of_long_work_is_noticed_before_it(
    fails: Callable[..., None], message: str, arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fails(2, message, *arguments)


def test_the_default_keeps_its_loop_however_it_is_named(run: Callable[..., Ran]) -> None:
    options = [
        json.loads(run("generate", PROMPT, "--json", *NEW, *given).out)["options"]
        for given in ([], ["--scheduler", "lsp"], ["--set", "floor=3"])
    ]
    assert options[0] == options[1] == options[2] == asdict(PRESET)
    whole = json.loads(run("generate", PROMPT, "--json", *NEW, "--lookahead", "none").out)["options"]
    assert whole == asdict(PRESET) | {"lookahead": None}


def test_a_marker_is_filled(run: Callable[..., Ran]) -> None:
    prompt = "Use 3, 5 and 7 to make 15.\nFirst<mask:5>, then 12 + 3 = 15."
    ran = run("generate", "--no-chat", prompt)
    assert (ran.code, ran.out) == (0, " 7 + 5 = 12, then 12 + 3 = 15.\n")
    ran = run("generate", "--no-chat", "--json", "--max-new-tokens", 4, prompt)
    assert json.loads(ran.out)["fills"] == [" 7 + 5 = 12"]
    assert -1 in json.loads(ran.out)["committed_in"]


def test_samples_of_a_prompt_are_printed_one_after_the_other(
    run: Callable[..., Ran], fails: Callable[..., None]
) -> None:
    ran = run("generate", PROMPT, PROMPT, "--json", *NEW, "--temperature", 3, "--scheduler", "fixed", "--n", 3)
    samples = [json.loads(line)["text"] for line in ran.out.splitlines()]
    assert len(samples) == 6
    assert len(set(samples)) > 3
    fails(2, "Invalid n: expected 1 without a temperature", "generate", PROMPT, "--n", 2)
    fails(2, "expected a single one with --stream, got 2", "generate", PROMPT, "--temperature", 1, "--n", 2, "--stream")
