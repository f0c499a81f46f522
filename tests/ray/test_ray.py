"""Ray Data with two local workers, one of which is killed: every row comes once, with the text of a single process."""

from __future__ import annotations

import os
import signal
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


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    variables = {"PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE", TOKEN: str(os.getpid())}
    os.environ.update(variables)
    how = {"include_dashboard": False, "runtime_env": {"env_vars": variables}, "logging_level": "ERROR"}
    ray.init(num_cpus=4, object_store_memory=2**27, **how)
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


def test_a_killed_worker_is_replaced_and_every_row_comes_once(ray: Any) -> None:
    rows = ray.data.from_items([{"prompt": text, "number": i} for i, text in enumerate(PROMPTS)])
    found = generate(rows.repartition(16), "tiny", workers=2, batch_size=3, seed=7, **OPTIONS)
    out, seen = [], set()
    for row in found.iter_rows():
        if not out:  # they are at work, and most of it is to be done
            victim, *others = workers()
            assert len(others) == 1
            os.kill(victim, signal.SIGKILL)
        out.append(row)
        seen.update(workers())
    assert len(seen - {victim}) >= 2  # the other one, and the one in its place
    out.sort(key=lambda row: row["number"])
    assert [row["number"] for row in out] == list(range(len(PROMPTS)))
    expected = lsp.generate(lsp.load("tiny"), PROMPTS, seed=[seed_of(7, text) for text in PROMPTS], **OPTIONS)
    assert [row["text"] for row in out] == [answer.text for answer in expected]
    assert [list(row["tokens"]) for row in out] == [answer.tokens for answer in expected]


def test_a_wrong_column_is_named(ray: Any) -> None:
    rows = ray.data.from_items([{"question": "Use 3, 5 and 7 to make 15.\n"}])
    with pytest.raises(Exception, match=r"Invalid column: expected one of \['question'\], got 'prompt'"):
        generate(rows, "tiny").take_all()
