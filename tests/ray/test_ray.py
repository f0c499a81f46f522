"""Ray Data with two local workers, one of which is killed: every row comes once, with the text of a single process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lsp
from lsp.evaluation.likelihood import seed_of
from lsp.integrations.ray import generate
from tests.support import ROOT

pytestmark = pytest.mark.ray

PROMPTS = [f"Use {a}, {b} and {c} to make 15.\n" for a in range(2, 6) for b in range(6, 10) for c in range(10, 13)]
OPTIONS = {"max_new_tokens": 24, "temperature": 0.6, "scheduler": "full"}
TOKEN = "LSP_TEST_OF_RAY"  # in the environment of our workers alone
SECONDS = 300.0


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    variables = {"PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE", TOKEN: str(os.getpid())}
    os.environ.update(variables)
    how = {"include_dashboard": False, "runtime_env": {"env_vars": variables}, "logging_level": "ERROR"}
    ray.init(num_cpus=2, object_store_memory=2**27, **how)
    yield ray
    ray.shutdown()


def workers() -> list[int]:
    """The processes of our actors."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                title, environment = ((entry / name).read_bytes() for name in ("cmdline", "environ"))
            except OSError:  # it has ended, or is not ours
                continue
            if b"MapWorker" in title and f"{TOKEN}={os.getpid()}".encode() in environment:
                found.append(int(entry.name))
    return found


def kill_one(killed: list[int]) -> None:
    """Kills a worker a moment after there are two."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and len(workers()) < 2:
        time.sleep(0.1)
    time.sleep(2)
    killed.extend(workers()[:1])
    for pid in killed:
        os.kill(pid, signal.SIGKILL)


def test_a_killed_worker_is_replaced_and_every_row_comes_once(ray: Any) -> None:
    killed: list[int] = []
    killer = threading.Thread(target=kill_one, args=(killed,))
    rows = ray.data.from_items([{"prompt": text, "number": i} for i, text in enumerate(PROMPTS)])
    found = generate(rows.repartition(16), "tiny", workers=2, batch_size=3, seed=7, **OPTIONS)
    killer.start()
    out = sorted(found.take_all(), key=lambda row: row["number"])
    killer.join()
    assert len(killed) == 1
    assert [row["number"] for row in out] == list(range(len(PROMPTS)))
    expected = lsp.generate(lsp.load("tiny"), PROMPTS, seed=[seed_of(7, text) for text in PROMPTS], **OPTIONS)
    assert [row["text"] for row in out] == [answer.text for answer in expected]
    assert [list(row["tokens"]) for row in out] == [answer.tokens for answer in expected]


def test_a_wrong_column_is_named(ray: Any) -> None:
    rows = ray.data.from_items([{"question": "Use 3, 5 and 7 to make 15.\n"}])
    with pytest.raises(Exception, match=r"Invalid column: expected one of \['question'\], got 'prompt'"):
        generate(rows, "tiny").take_all()
