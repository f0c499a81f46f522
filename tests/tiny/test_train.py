"""A short run learns, survives a kill and ends with the same bits as one that was never killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

import lsp
from lsp.tiny.tasks import TASKS
from lsp.tiny.training import train
from tests.support import ROOT

STEPS, SAVE, LOG = 32, 8, 4


def start(out: Path, **more: object) -> subprocess.Popen:
    sizes = ["--d-model=64", "--n-layers=2", "--scale=0.3", f"--save-every={SAVE}", f"--log-every={LOG}"]
    command = [sys.executable, "-m", "lsp.tiny.training.train", "--out", str(out), "--steps", str(STEPS)]
    return subprocess.Popen([*command, *sizes], cwd=ROOT, stdout=subprocess.DEVNULL, **more)


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


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of an uninterrupted run and of one that was killed and resumed."""
    whole, killed = (tmp_path_factory.mktemp(name) for name in ("whole", "killed"))
    uninterrupted = start(whole)
    kill_after_first_save(start(killed), killed)
    assert not (killed / f"state-{STEPS}").exists()
    assert start(killed).wait() == 0
    assert uninterrupted.wait() == 0
    return whole, killed


def test_the_loss_of_every_task_falls(runs):
    log = (runs[0] / "log.txt").read_text()
    for task in TASKS:
        losses = [float(loss) for loss in re.findall(rf"{task} ([\d.]+)", log)]
        assert len(losses) == STEPS // LOG
        assert losses[-1] < 0.9 * losses[0]


def test_a_killed_run_ends_with_the_same_bits(runs):
    whole, killed = (run / f"state-{STEPS}" for run in runs)
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()
    assert f"from step {SAVE}" in (runs[1] / "log.txt").read_text()
    assert all(tensor.isfinite().all() for tensor in load_file(whole / "model.safetensors").values())


def test_the_result_is_a_checkpoint_that_decodes(runs):
    folder = runs[0] / f"state-{STEPS}"
    (answer,) = lsp.generate(lsp.load(folder, dtype="float32"), "Use 3, 5 and 7 to make 26.\n", max_new_tokens=24)
    assert answer.passes > 0
    assert answer.text is not None


def test_time_spent_paused_does_not_move_the_schedule():
    options = train.Options(Path("."), None, 1.0, 0, 1, 1, 1, 1.0, False, 64, 2)
    trainer = train.Trainer(options, 0)
    trainer.count(2.0)
    assert trainer.progress == 2 / 60
    trainer.count(3600.0)
    assert trainer.progress <= (2 + 10) / 60
