"""The report of `make bench`: page and README from a run, a check of two runs, and a run that can be continued."""

from __future__ import annotations

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bench import answers, flops, ratios, sizes
from bench.conftest import continued, here
from bench.ratios import LIMIT, OURS, Contender, Report, interleave
from bench.report import __main__ as command
from bench.report import check, markdown
from bench.report import machine as recorded_machine
from bench.report import run as recorded_run
from bench.report.machine import sources
from bench.report.markdown import sections
from bench.report.page import text
from bench.report.plots import of_prefix
from bench.report.run import Run, put_aside
from bench.report.short import ANSWER, CHOSEN, LOOPS, short
from bench.support import compiled
from tests.support import ROOT

MACHINE = {"processor": "abacus", "threads": "2", "instruction set": "beads (the widest)", "commit": "0123"}
COMMITS = [name for name in CHOSEN if "bench_commit_prefix" in name]
CASES = ["64 x 126464 float32", "64 x 126464 bfloat16", "1024 x 126464 float32"]
PLOTTED = ("commit", "attention", "answers", "growth")
SECONDS = [0.08, 0.04, 0.02, 0.016, 0.008]


def made_up(**changed: float) -> Run:
    """A small run; `changed` are other seconds of ours, by case."""
    run = Run(MACHINE, sessions=[{"begun": "noon", "ended": "one"}], all_families=True)
    for case, name in zip(CASES, COMMITS, strict=True):
        rows, dtype, report = int(case.split()[0]), case.split()[-1], Report()
        values = {LIMIT: 1e-3, OURS: changed.get(case, 1.25e-3), "reference": 0.05, "Fast-dLLM": 0.0625}
        facts = {"rows": rows, "vocabulary": 126464, "dtype": dtype}
        report.compare("commit_prefix", case, values, over=LIMIT, **facts)
        run.add(name, 20.0, report)
    report = Report()
    for prefix in (64, 128):
        for dtype in ("float32", "bfloat16"):
            values = {OURS: 1e-5 * prefix, "SDPA on a view": 2e-5 * prefix, LIMIT: 0.5e-5 * prefix}
            facts = {"prefix": prefix, "queries": 32, "dtype": dtype}
            title, case = "suffix_attention, even lengths, 8/2 heads", f"prefix {prefix}, 32 queries, {dtype}"
            report.compare(title, case, values, over=OURS, **facts)
    report.target("SDPA / ours", 0.946, at_least=0.94)
    report.target("commit is quick", 2.0, at_most=1.0)
    run.add("bench/bench_attention.py::bench_lengths", 60.0, report)
    report, parts = Report(), {"model": 0.5, "head": 0.25, "host": 0.25}
    values = dict(zip(LOOPS, SECONDS, strict=True)) | ({"LSP": changed["LSP"]} if "LSP" in changed else {})
    report.compare(ANSWER, "2 M", values, over=LOOPS[1], ours=LOOPS[2:], parts=dict.fromkeys(LOOPS, parts))
    run.add("bench/bench_answers.py::bench_embedded", 120.0, report)
    report = Report()
    for length in (64, 128):
        times = {name: length * seconds for name, seconds in zip(("LLaDA's loop", "LSP"), (2.0, 1.0), strict=True)}
        facts = {"of": "answer", "length": length}
        report.compare(
            "growth with the answer: a model", f"{length} tokens", times, over="LLaDA's loop", ours=["LSP"], **facts
        )
    report.add("growth with the answer: a model", "exponent of seconds", {"LLaDA's loop": "2.00", "LSP": "1.00"})
    run.add("bench/bench_growth.py::bench_growth[answer]", 60.0, report)
    return run


def test_a_page_has_the_machine_every_table_and_what_was_missed() -> None:
    page = text(made_up())
    assert "- processor: abacus" in page
    assert "6 benchmarks, 5 minutes, from noon to one" in page
    assert "| 64 x 126464 float32 | 1.00 ms | 1.25 | 50.0 | 62.5 |" in page
    assert "1 of 2 were met" in page
    assert "| commit is quick | at most 1 | 2.00 | **MISSED** |" in page
    assert "| SDPA / ours | at least 0.94 | 0.946 | met |" in page
    assert page.index("MISSED") < page.index("| met |")
    assert "not whole" not in page


def test_a_figure_that_misses_its_target_by_little_shows_it() -> None:
    report = Report()
    report.target("SDPA / ours", 0.946, at_least=0.95)
    (each,) = report.targets
    assert (each.met, each.measured, each.asked) == (False, "0.946", "at least 0.95")


def test_a_run_that_lacks_something_says_so() -> None:
    run = made_up()
    run.left = ["bench/bench_head.py::bench_linear_commit_prefix"]
    assert "**This run is not whole.**" in text(run)


def test_the_short_tables_divide_by_ours_and_separate_what_the_loop_gains() -> None:
    found = short(made_up(), "plots")
    assert "| commit_prefix: 64 x 126464 float32 | 1.25 ms | 1.25 | 40.0x | - | Fast-dLLM 50.0x |" in found["ratios"]
    assert "| 2 M | 80.0 ms | 40.0 ms | 20.0 ms | 16.0 ms | 8.00 ms | 2.00x | 1.25x | 2.00x |" in found["loop"]
    assert "| growth with the answer, a model | 2.00 | 1.00 |" in found["growth"]
    assert "](plots/growth.svg)" in found["growth"]


def test_a_page_can_be_written_again_without_a_measurement(tmp_path: Path) -> None:
    readme, file = tmp_path / "README.md", tmp_path / "run.json"
    readme.write_text("Before\n<!-- benchmarks: loop -->\nold\n<!-- benchmarks: end -->\nafter\n", "utf-8")
    made_up().write(file)
    (tmp_path / "docs").mkdir()
    arguments = ["--docs", str(tmp_path / "docs"), "--readme", str(readme)]
    command.main([str(file), *arguments])
    first = {path: path.read_bytes() for path in (tmp_path / "docs").rglob("*.*")}
    assert {"benchmarks.md", "run.json", *(f"{name}.svg" for name in PLOTTED)} == {path.name for path in first}
    assert sections(readme.read_text("utf-8")) == {"loop": short(made_up(), "docs/benchmarks")["loop"]}
    assert readme.read_text("utf-8").startswith("Before\n")
    file.unlink()
    command.main(arguments)  # from the run that the page has
    assert {path: path.read_bytes() for path in first} == first
    for target in re.findall(r"\]\((benchmarks/[^)]+)\)", (tmp_path / "docs/benchmarks.md").read_text("utf-8")):
        assert (tmp_path / "docs" / target).exists()


def test_a_section_that_nobody_writes_is_refused() -> None:
    readme = "<!-- benchmarks: weather -->\n<!-- benchmarks: end -->"
    with pytest.raises(ValueError, match="Invalid section: expected one of ratios, loop, growth, got weather"):
        command.readme(made_up(), readme)


@pytest.mark.parametrize("what", ["left", "families", "tiny"])
def test_the_projects_page_and_baseline_take_whole_real_runs_alone(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_up()
    if what == "left":
        run.left = ["bench/bench_head.py::bench_linear_commit_prefix"]
    if what == "families":
        run.all_families = False
    if what == "tiny":
        run.machine = MACHINE | {"sizes": "tiny"}
    run.write(tmp_path / "run.json")
    with pytest.raises(SystemExit, match="Invalid run: expected"):
        command.main([str(tmp_path / "run.json")])
    monkeypatch.setattr(check, "BASELINE", tmp_path / "baseline.json")
    with pytest.raises(SystemExit, match="Invalid run: expected"):
        check.main(["--run", str(tmp_path / "run.json"), "--accept"])
    assert not check.BASELINE.exists()


def test_page_and_readme_are_what_the_run_in_docs_says() -> None:
    run = command.taken_over(command.DOCS)
    assert (command.DOCS / "benchmarks.md").read_text("utf-8") == command.page(command.DOCS, run), (
        "stale: python -m bench.report"
    )
    before = command.README.read_text("utf-8")
    assert command.readme(run, before) == before, "README.md is stale: python -m bench.report"
    assert set(sections(before)) == set(command.NO_SECTIONS)


def checked(tmp_path: Path, old: Run, new: Run, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    for name, run in (("old", old), ("new", new)):
        run.write(tmp_path / f"{name}.json")
    files = ["--baseline", str(tmp_path / "old.json"), "--run", str(tmp_path / "new.json")]
    return check.main(files), capsys.readouterr().out


def test_equal_runs_and_small_changes_are_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slower = {CASES[0]: 1.14 * 1.25e-3}
    status, out = checked(tmp_path, made_up(), made_up(**slower), capsys)
    assert (status, out.splitlines()) == (0, ["15 ratios compared"])


def test_what_became_worse_is_named_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[1]
    status, out = checked(tmp_path, made_up(), made_up(**{case: 1.5e-3, "LSP": 0.01}), capsys)
    assert status == 1
    assert f"worse by 20 %: commit_prefix, {case}: ours / limit was 1.25, is 1.5" in out
    assert "worse by 25 %: an answer, end to end, 2 M: LSP / Fast-dLLM's loop was 0.2, is 0.25" in out


def test_what_became_better_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = checked(tmp_path, made_up(), made_up(LSP=0.001), capsys)
    assert status == 0
    assert "worse" not in out


def test_a_whole_machine_that_is_slower_is_no_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = made_up()
    for found in slow.tests.values():
        for row in found["rows"]:
            row["values"] = {name: 3 * seconds for name, seconds in row["values"].items()}
    slow.machine = MACHINE | {"processor": "fingers"}
    status, out = checked(tmp_path, made_up(), slow, capsys)
    assert status == 0
    assert "the machines differ: abacus and fingers" in out


def test_what_is_in_one_run_alone_is_said_and_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    less = made_up()
    del less.tests["bench/bench_answers.py::bench_embedded"]
    name = "an answer, end to end, 2 M: LSP / Fast-dLLM's loop"
    assert checked(tmp_path, made_up(), less, capsys)[0] == 0
    status, out = checked(tmp_path, less, made_up(LSP=99.0), capsys)
    assert status == 0
    assert f"not compared, only in the new run: {name}" in out


def test_what_is_too_small_to_be_measured_has_no_ratio() -> None:
    report = Report()
    report.compare("memory", "little", {"LSP": 0.0, "LLaDA": 4096.0}, over="LLaDA", ours=["LSP"], unit="bytes")
    report.compare("memory", "less", {"LSP": 4096.0, "LLaDA": 0.0}, over="LSP", ours=["LSP"], unit="bytes")
    assert [ratio for row in report.rows for ratio in check.ratios_of(row)] == []


def test_a_run_is_accepted_as_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_up().write(tmp_path / "run.json")
    files = ["--baseline", str(tmp_path / "docs" / "base.json"), "--run", str(tmp_path / "run.json")]
    assert check.main(files) == 2  # there is none yet
    assert "no such file" in capsys.readouterr().err
    assert check.main([*files, "--accept"]) == 0
    kept = json.loads((tmp_path / "docs" / "base.json").read_text("utf-8"))
    assert kept["ratios"][f"commit_prefix, {CASES[0]}: ours / limit"] == 1.25
    assert check.main(files) == 0


@pytest.mark.skipif(not check.BASELINE.exists(), reason="there is no baseline yet")
def test_the_committed_baseline_is_one_of_ratios() -> None:
    found = json.loads(check.BASELINE.read_text("utf-8"))
    assert found["format"] == check.FORMAT
    assert found["ratios"]


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "lsp bench 0"}'])
def test_a_file_of_another_kind_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content, "utf-8")
    with pytest.raises(ValueError, match=r"Invalid format of run.json: expected 'lsp bench 2', got"):
        check.Ratios.read(tmp_path / "run.json")


def measured(run: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--benchmark", "--tiny", "--benchmark-disable"]
    command += [] if run is None else ["--run", str(run)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_short_table_has_benchmarks_that_exist_and_every_operation() -> None:
    command = [sys.executable, "-m", "pytest", "--benchmark", "--collect-only", "bench"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = done.stdout.splitlines()
    assert [name for name in CHOSEN if name not in names] == []
    for operation in ("commit_prefix", "token_stats", "linear_commit_prefix", "suffix_attention", "linear"):
        dtypes = [name for name in CHOSEN if f"::bench_{operation}[" in name]
        assert any("float32" in name for name in dtypes)
        assert any("bfloat16" in name for name in dtypes), operation


def test_every_operation_has_its_definition_beside_it(tmp_path: Path) -> None:
    """Also those whose times nobody asks for: noise, confidences from the head, few queries, long prefixes."""
    which = (
        "(noise and flat) or merge or ((bench_linear_token_stats or small or (lengths and even and 24-20)) and float32)"
    )
    files = [f"bench/bench_{family}.py" for family in ("commit", "head", "attention")]
    done = measured(tmp_path / "run.json", *files, "-k", which)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(Run.read(tmp_path / "run.json").rows())
    titles = {row.title for row in rows}
    assert titles == {
        "token_stats with noise and entropy",
        "linear_token_stats",
        "merge_token_stats",
        "suffix_attention, small passes",
        "suffix_attention, even lengths, 8/2 heads",
    }
    for row in rows:
        assert LIMIT in row.values
        definitions = {"compiled"} if row.title == "merge_token_stats" else {"reference", "compiled reference"}
        assert definitions <= set(row.values), row.title


def test_batches_and_growth_are_watched_too(tmp_path: Path) -> None:
    files = ("bench/bench_batches.py", "bench/bench_model.py")
    done = measured(tmp_path / "run.json", *files, "-k", "(bench_batches and Threshold) or bench_growth")
    assert done.returncode == 0, done.stdout + done.stderr
    watched = check.Ratios.of(Run.read(tmp_path / "run.json")).ratios
    assert any(name.endswith("Threshold 0.9: kept full / group by group") for name in watched)
    assert {name.split(":")[0] for name in watched} >= {"growth with the suffix at prefix 24", "Threshold 0.9"}


def test_the_attention_over_the_prefix_is_drawn_by_dtype_for_one_number_of_queries() -> None:
    report = Report()
    for prefix, queries, dtype in [
        (0, 32, "float32"),
        (8, 1, "float32"),
        (64, 32, "float32"),
        (8, 32, "float32"),
        (8, 32, "bfloat16"),
    ]:
        facts = {"prefix": prefix, "queries": queries, "dtype": dtype}
        report.compare("", "", {OURS: 1.0}, over=OURS, **facts)
    drawn = [[(row.facts["prefix"], row.facts["dtype"]) for row in rows] for rows in of_prefix(report.rows)]
    assert drawn == [[(8, "float32"), (64, "float32")], [(8, "bfloat16")]]
    assert of_prefix([]) == []


def test_a_compiled_definition_has_run_before_it_is_timed() -> None:
    calls = []

    def definition(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return x + 1

    run = compiled(definition, torch.zeros(3))
    assert calls == [3]
    assert run().tolist() == [1, 1, 1]


def test_a_run_goes_on_where_it_was_interrupted_and_keeps_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    done = measured(file, "bench/bench_block.py", "-k", "silu_mul and float32")
    assert done.returncode == 0, done.stdout + done.stderr
    first = Run.read(file)
    assert first.families == ["block"]
    assert not first.is_whole
    assert "tiny" in first.machine["sizes"]
    assert str(ROOT) not in file.read_text("utf-8")  # nothing of where it was measured
    done = measured(file, "bench/bench_block.py", "--resume", "-k", "(silu_mul or add_norm) and float32")
    assert done.returncode == 0, done.stdout + done.stderr
    second = Run.read(file)
    assert len(second.sessions) == 2
    assert len(second.tests) == 2 * len(first.tests)
    assert {name: second.tests[name] for name in first.tests} == first.tests
    assert {row.title for row in second.rows()} == {"add_norm", "silu_mul"}
    assert all(row.values[OURS] > 0 and LIMIT in row.values for row in second.rows())


def test_nothing_overwrites_a_run(tmp_path: Path) -> None:
    """A new run into the same file keeps the older ones; what is tried without a file is kept nowhere."""
    file, one = tmp_path / "run.json", ("bench/bench_block.py", "-k", "silu_mul and float32 and 5")
    made_up().write(file)
    older = file.read_bytes()
    done = measured(None, *one)
    assert "this run is not kept" in done.stdout, done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"run.json"}
    done = measured(file, "bench/bench_block.py", "-k", "no such benchmark")
    assert file.read_bytes() == older  # a run that found nothing takes no place
    assert f"the run is in {file}" in measured(file, *one).stdout
    assert Run.read(file).families == ["block"]
    assert (tmp_path / "run.1.json").read_bytes() == older
    made_up(LSP=0.5).write(file)
    put_aside(file)
    assert {path.name for path in tmp_path.iterdir()} == {"run.1.json", "run.2.json"}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("given", "file"),
    [((), "run"), (("RESUME=1",), "run"), (("ONLY=commit",), "some"), (("ONLY=commit", "RESUME=1"), "run")],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, tuple) else value,
)
def test_some_families_alone_are_kept_beside_the_run_of_the_page(given: tuple[str, ...], file: str) -> None:
    done = subprocess.run(["make", "-n", "bench", *given], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if "--benchmark" in line or "bench.report" in line]
    assert f"--run .benchmarks/{file}.json" in lines[0]
    assert ("--resume" in lines[0]) == ("RESUME=1" in given)
    assert [line.split()[-1] for line in lines[1:]] == ([] if "ONLY=commit" in given else [f".benchmarks/{file}.json"])


def test_a_run_of_another_machine_is_not_continued(tmp_path: Path) -> None:
    made_up().write(tmp_path / "run.json")
    with pytest.raises(pytest.UsageError, match="Invalid --resume: expected a run of this machine and source, got"):
        continued(tmp_path / "run.json")
    with pytest.raises(pytest.UsageError, match=r"Invalid --resume: expected --run FILE"):
        continued(None)
    with pytest.raises(pytest.UsageError, match=r"Invalid --resume: expected a run in .*, got no such file"):
        continued(tmp_path / "none.json")


def repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A small one in place of this one; the function writes a file and commits everything."""
    monkeypatch.setattr(recorded_machine, "ROOT", folder)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    folder.mkdir()
    subprocess.run([*git, "init", "-q"], check=True)

    def commit(file: str, content: str) -> None:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(content, "utf-8")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", content], check=True)

    for place in ("setup.py", "csrc/a.cpp", "lsp/a.py", "lsp/tiny/checkpoint/a", "lsp_kernels/a.py", "bench/a.py"):
        commit(place, "first")
    return commit


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_run_goes_on_after_commits_that_change_nothing_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, file = repository(tmp_path / "source", monkeypatch), tmp_path / "run.json"
    begun, first = Run(here(), sources()), here()["commit"]
    begun.write(file)
    commit("docs/a.md", "words")
    (tmp_path / "source" / "docs" / "a.md").write_text("more words", "utf-8")
    commit("lsp/tiny/checkpoint/a", "new weights")
    second = here()["commit"]
    assert continued(file).machine["commit"] == f"{first} and {second}"
    continued(file).write(file)
    assert continued(file).machine["commit"] == f"{first} and {second}"  # each is named once
    (tmp_path / "source/lsp/a.py").write_text("not committed", "utf-8")
    with pytest.raises(pytest.UsageError, match=r"expected a run of this machine and source, got another lsp$"):
        continued(file)
    (tmp_path / "source/lsp/a.py").write_text("first", "utf-8")
    assert continued(file).sources == begun.sources
    commit("csrc/b.cpp", "a kernel")
    with pytest.raises(pytest.UsageError, match=r"got another csrc$"):
        continued(file)


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_mended_benchmark_runs_again_and_the_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, file = repository(tmp_path / "source", monkeypatch), tmp_path / "run.json"
    commit("bench/bench_head.py", "wrong")
    commit("bench/bench_commit.py", "right")
    begun, kept = Run(here(), sources()), "bench/bench_commit.py::bench_noise"
    for name in ("bench/bench_head.py::bench_merge", kept):
        begun.add(name, 1.0, Report())
    begun.write(file)
    commit("bench/bench_head.py", "mended")
    run = continued(file)
    assert list(run.tests) == [kept]
    run.write(file)
    assert list(continued(file).tests) == [kept]
    commit("bench/a.py", "what all benchmarks share")
    with pytest.raises(pytest.UsageError, match=r"got another bench$"):
        continued(file)


def test_slow_contenders_have_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"quick": 0.01, "slow": 2.0, "slower": 5.0, "slowest": 50.0}
    turns = dict.fromkeys(taken, 0)

    def seconds_of(run: Contender) -> float:
        turns[str(run())] += 1
        return taken[str(run())]

    monkeypatch.setattr(sizes, "measuring", True)
    monkeypatch.setattr(ratios, "seconds_of", seconds_of)
    assert interleave({name: (lambda name=name: name) for name in taken}, rounds=15, seconds=4.0) == taken
    assert turns == {"quick": 1 + 15, "slow": 1 + 3, "slower": 2, "slowest": 1}  # a first run is kept if it is slow


@pytest.mark.parametrize("module", [answers, flops, markdown, ratios, recorded_run], ids=lambda module: module.__name__)
def test_docstring_examples_hold(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
