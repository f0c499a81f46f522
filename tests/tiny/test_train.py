"""A short run learns, survives a kill and ends with the same bits as one that was never killed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file

import lsp
from lsp.tiny import CHECKPOINT
from lsp.tiny.training import tokenizer as tokens
from lsp.tiny.training import train
from lsp.tiny.training.curriculum import CURRICULA
from lsp.tiny.training.model import Config, TinyModel
from tests.support import ROOT

STEPS, SAVE, LOG = 32, 8, 4
FEW = 16
"""Steps from a checkpoint."""


def start(out: Path, *given: str, steps: int = STEPS, **more: object) -> subprocess.Popen:
    sizes = ["--d-model=64", "--n-layers=2", "--scale=0.3", f"--save-every={SAVE}", f"--log-every={LOG}"]
    command = [sys.executable, "-m", "lsp.tiny.training.train", "--out", str(out), "--steps", str(steps)]
    return subprocess.Popen([*command, *sizes, *given], cwd=ROOT, stdout=subprocess.DEVNULL, **more)


def wait_for_first_save(run: subprocess.Popen, out: Path) -> list[int]:
    """Waits until there is something to resume from; returns the processes of the run besides the first."""
    while not (out / "latest.json").exists():
        assert run.poll() is None
        time.sleep(0.02)
    return [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]


def kill_after_first_save(run: subprocess.Popen, out: Path) -> None:
    for pid in [run.pid, *wait_for_first_save(run, out)]:
        os.kill(pid, signal.SIGKILL)
    run.wait()


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.abuse("command line")
def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    """Also where SIGINT is ignored, as for jobs in the background of a script."""
    run = start(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    workers = wait_for_first_save(run, tmp_path)
    assert len(workers) >= 2
    run.kill()
    run.wait()
    end = time.monotonic() + 20
    while (alive := [pid for pid in workers if is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert alive == []
    assert not (tmp_path / f"state-{STEPS}").exists()


class Runs(NamedTuple):
    """Folders of an uninterrupted run and of one that was killed and resumed."""

    whole: Path
    killed: Path
    curriculum: str
    steps: int
    learned: Sequence[str]  # parts whose loss falls


def ran_twice(whole: Path, killed: Path, *given: str, steps: int) -> None:
    uninterrupted = start(whole, *given, steps=steps)
    kill_after_first_save(start(killed, *given, steps=steps), killed)
    assert not (killed / f"state-{steps}").exists()
    assert start(killed, *given, steps=steps).wait() == 0
    assert uninterrupted.wait() == 0


@pytest.fixture(scope="module", params=["first", "decoded"])
def runs(tmp_path_factory, request) -> Runs:
    whole, killed, first = (tmp_path_factory.mktemp(name) for name in ("whole", "killed", "first"))
    if request.param == "first":
        ran_twice(whole, killed, steps=STEPS)
        return Runs(whole, killed, request.param, STEPS, list(CURRICULA["first"].stages[0].recipes))
    ran_twice(whole, killed, "--start", str(untrained(first)), "--curriculum", request.param, steps=FEW)
    return Runs(whole, killed, request.param, FEW, [])  # so few steps, all with a small rate, teach nothing yet


def untrained(folder: Path) -> Path:
    """A checkpoint to start from, as small as these runs and with the vocabulary of the shipped one."""
    words = tokens.load(CHECKPOINT)
    sizes = {"d_model": 64, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 192}
    TinyModel(Config(vocab_size=words.get_vocab_size(), **sizes)).save(folder)
    tokens.save(words, folder)
    return folder


def test_the_loss_of_every_task_falls(runs):
    if not runs.learned:
        pytest.skip("too few steps to learn anything")
    log = (runs.whole / "log.txt").read_text()
    for task in runs.learned:
        losses = [float(loss) for loss in re.findall(rf"{task} ([\d.]+)", log)]
        assert len(losses) == runs.steps // LOG
        assert losses[-1] < 0.9 * losses[0]


def test_the_log_names_every_part_of_the_curriculum(runs):
    first = CURRICULA[runs.curriculum].stages[0]
    parts = [*first.recipes, *(f"parallel {task}" for task in first.parallel), "drill"]
    (*_, last) = re.findall(r"step.*", (runs.whole / "log.txt").read_text())
    assert re.findall(r"((?:parallel )?[a-z]+) \d+\.\d{3}", last) == parts


def test_a_killed_run_ends_with_the_same_bits(runs):
    whole, killed = (run / f"state-{runs.steps}" for run in (runs.whole, runs.killed))
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()
    assert f"from step {SAVE}" in (runs.killed / "log.txt").read_text()
    assert all(tensor.isfinite().all() for tensor in load_file(whole / "model.safetensors").values())


def test_the_result_is_a_checkpoint_that_decodes(runs):
    folder = runs.whole / f"state-{runs.steps}"
    (answer,) = lsp.generate(lsp.load(folder, dtype="float32"), "Use 3, 5 and 7 to make 26.\n", max_new_tokens=24)
    assert answer.passes > 0
    assert answer.text is not None


def test_time_spent_paused_does_not_move_the_schedule():
    options = train.Options(Path("."), None, 1.0, 0, 1, 1, 1, 1.0, False, 64, 2)
    trainer = train.Trainer(options, 0)
    trainer.count(2.0)
    assert trainer.progress == 2 / 60
    trainer.count(3600.0)
    assert trainer.progress == (2 + train.LONGEST_STEP) / 60
