"""`lsp eval`: lm-eval's own command line with our model, in one process and in two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="needs lm-eval: make test-eval")

from lsp import cli
from lsp.cli import eval as command
from tests.support import ROOT

pytestmark = pytest.mark.evaluation

CHOICES = """
task: choose
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}, {metric: exact_match}]
"""
QUESTIONS = [
    {
        "question": f"Use {a}, 5 and 7 to make {a + 12}.\nFirst 7",
        "choices": [" + 5 = 12", " - 5 = 3", " def"],
        "label": 0,
    }
    for a in (3, 4, 6, 8, 9)
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "questions.jsonl"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    (folder / "choose.yaml").write_text(CHOICES % data)
    return folder


def arguments(tasks: Path, out: Path) -> list[str]:
    own = [
        "--model",
        "tiny",
        "--scheduler",
        "threshold",
        "--set",
        "p=0.95",
        "--batch-size",
        "3",
        "--mc-num",
        "16",
        "--no-chat",
    ]
    names = ["--tasks", "lsp_tiny_sudoku,lsp_tiny_countdown", "--tasks", "choose"]
    theirs = ["--limit", "7", "--include_path", str(tasks), "--output_path", str(out), "--log_samples"]
    return ["eval", *own, *names, *theirs]


def written(out: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The results, and the samples of every task in the order of the documents."""
    (results,) = out.rglob("results_*.json")
    samples = {}
    for path in out.rglob("samples_*.jsonl"):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        samples[path.name.removeprefix("samples_").rsplit("_", 1)[0]] = sorted(lines, key=lambda one: one["doc_id"])
    return json.loads(results.read_text("utf-8")), samples


@pytest.fixture(scope="module")
def one(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("one")
    assert cli.run(arguments(tasks, out)) == 0
    return written(out)


@pytest.fixture(scope="module")
def two(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("two")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lsp"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, *launcher, *arguments(tasks, out)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("|lsp_tiny_sudoku") == 1  # one process prints
    return written(out)


def test_the_result_file_says_what_was_asked_and_what_it_cost(one: Any) -> None:
    results, samples = one
    about = results["config"]["lsp"]
    assert (about["scheduler"], about["mc_num"]) == ("Threshold(p=0.95)", 16)
    assert results["config"]["model_args"]["p"] == "0.95"
    assert results["config"]["batch_size"] == "3"
    for task, documents in (("lsp_tiny_sudoku", 7), ("lsp_tiny_countdown", 7), ("choose", 5)):
        assert about["counts"][task]["documents"] == len(samples[task]) == documents
        assert min(about["counts"][task]["by_document"]["passes"]) >= 1
    assert results["results"]["lsp_tiny_sudoku"]["acc,none"] > 0.5
    assert results["results"]["choose"]["acc,none"] == 1


def test_two_processes_give_the_results_of_one(one: Any, two: Any) -> None:
    (alone, of_one), (shared, of_two) = one, two
    assert shared["config"]["lsp"]["processes"] == 2
    assert of_one.keys() == of_two.keys()
    for task, samples in of_one.items():
        assert [each["doc_id"] for each in of_two[task]] == list(range(len(samples)))
        for here, there in zip(samples, of_two[task], strict=True):
            if task == "choose":
                values = [[float(value) for value, _ in each["filtered_resps"]] for each in (here, there)]
                assert values[0] == pytest.approx(values[1], rel=1e-4)
            else:
                assert here["filtered_resps"] == there["filtered_resps"]
    for task, scores in alone["results"].items():
        assert shared["results"][task] == pytest.approx(scores)


def test_more_processes_than_documents_are_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = "task.build_requests() did not find any docs!"  # what lm-eval says in the process without a document
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = r"Invalid number of processes: expected at most .* documents .*, got 2"
    with pytest.raises(ValueError, match=said), command.documents_for_all():
        raise ValueError(theirs)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="did not find any docs"), command.documents_for_all():
        raise ValueError(theirs)


def test_two_processes_count_every_document_once(one: Any, two: Any) -> None:
    """7 documents are 4 and 3, and lm-eval pads the second process with a request that it has had."""
    (alone, _), (shared, of_two) = one, two
    padded = [each for each in of_two["lsp_tiny_countdown"] if len(each["resps"][0]) > 1]
    assert len(padded) == 1
    assert shared["config"]["lsp"]["counts"] == alone["config"]["lsp"]["counts"]


# What is handed on


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], Any]:
    """What lm-eval is asked to run, without running it."""
    from lm_eval._cli.run import Run

    seen: list[Any] = []
    monkeypatch.setattr(Run, "_execute", staticmethod(seen.append))

    def call(*given: str) -> Any:
        assert cli.run(["eval", *given]) == 0
        return seen.pop()

    return call


def test_options_become_arguments_of_the_model_and_the_rest_is_lm_evals(asked: Callable[..., Any]) -> None:
    before = list(sys.argv)
    found = asked(
        *("--tasks", "a,b", "--tasks", "c", "--model", "some/model", "--dtype", "bfloat16", "--max-new-tokens", "64"),
        *("--scheduler", "paper", "--set", "alpha=0.1", "--block-length", "32", "--lookahead", "none", "--seed", "3"),
        *("--stop", "END", "--delimiters", "code", "--no-check-greedy", "--no-chat", "--temperature", "0.5"),
        *("--cfg-scale", "1.5"),
        *("--gen_kwargs", "top_k=4", "--num_fewshot", "2", "--write_out", "--confirm_run_unsafe_code"),
    )
    assert found.model_args == {
        "pretrained": "some/model",
        "dtype": "bfloat16",
        "scheduler": "paper",
        "alpha": "0.1",
        "max_new_tokens": 64,
        "block_length": 32,
        "lookahead": None,
        "seed": 3,
        "stop": ["END"],
        "delimiters": "code",
        "cfg_scale": 1.5,
        "mc_num": 128,
        "check_greedy": False,
    }
    assert (found.model, found.tasks, found.batch_size, found.device) == ("lsp", ["a", "b", "c"], "8", "cpu")
    assert found.gen_kwargs == {"do_sample": True, "temperature": 0.5, "top_k": 4}
    assert (found.num_fewshot, found.write_out, found.confirm_run_unsafe_code) == (2, True, True)
    assert not hasattr(found, "apply_chat_template")
    assert found.include_path == [str(command.FOLDER)]
    assert sys.argv == before


def test_defaults_are_those_of_the_model_and_of_the_tasks(asked: Callable[..., Any]) -> None:
    found = asked("--tasks", "lsp_tiny_code", "another", "--chat", "--batch_size", "2", "--include_path", "mine")
    expected = {"pretrained": "tiny", "scheduler": "lsp", "seed": 0, "delimiters": "text", "cfg_scale": 0.0}
    assert found.model_args == expected | {"mc_num": 128, "check_greedy": True}
    assert (found.tasks, found.batch_size, found.apply_chat_template) == (["lsp_tiny_code", "another"], "2", True)
    assert found.gen_kwargs is None
    assert found.include_path == [str(command.FOLDER), "mine"]


# What is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--tasks", "lsp_tiny_code", "--nonsense", "1"], "unrecognized arguments: --nonsense"),
        (["--tasks", "lsp_tiny_code", "--num_fewshot", "few"], "invalid int value: 'few'"),
        (["--limit", "3"], "Missing option '--tasks'"),
        (["--tasks", "lsp_tiny_code", "--set", "q=1"], "Invalid setting 'q=1' of lsp: expected name=value with"),
        (["--tasks", "lsp_tiny_code", "--batch-size", "0"], "--batch-size"),
        (
            ["--tasks", "lsp_tiny_code", "--device", "gpu"],
            "Invalid device: expected one such as cpu, cuda, cuda:1 or mps",
        ),
        (["--tasks", "lsp_tiny_code", "--log_samples"], "Specify --output_path if providing --log_samples"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(
    capfd: pytest.CaptureFixture[str], given: Sequence[str], message: str
) -> None:
    assert cli.run(["eval", *given]) == 2
    out, err = capfd.readouterr()
    errors = [line for line in err.splitlines() if not line.startswith("20")]  # lm-eval's log has dates
    assert out == ""
    assert len(errors) == 1
    assert errors[0].startswith("lsp: error: ")
    assert message in errors[0]
