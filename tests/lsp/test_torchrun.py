"""`lsp generate` under torchrun: the processes hold the model together, and the first one prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lsp
from lsp.tiny import CHECKPOINT
from tests.lsp.checkpoints import llada
from tests.support import ROOT

SECONDS = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two heads with the tokenizer of the embedded one."""
    out = llada(embedding_size=241, vocab_size=241, mask_token_id=0, eos_token_id=1).save(
        tmp_path_factory.mktemp("two")
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(CHECKPOINT / name, out / name)
    return out


def torchrun(size: int, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "-m", "lsp"]
    how = {"input": stdin, "env": environment, "timeout": SECONDS, "capture_output": True, "text": True}
    return subprocess.run([*launch, *arguments], check=False, **how)


def test_two_processes_print_the_answers_of_one_once(folder: Path) -> None:
    prompts = ["Use 3, 5 and 7 to make 15.\n", "Tom has 5 coins."]
    options = {"max_new_tokens": 12, "temperature": 0.5, "seed": 3}
    expected = lsp.generate(lsp.load(folder), [prompts[1], prompts[0]], **options)
    given = ["--max-new-tokens", "12", "--temperature", "0.5", "--seed", "3", "--json"]
    ran = torchrun(2, "generate", "--model", str(folder), *given, prompts[1], "--file", "-", stdin=prompts[0])
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [answer["tokens"] for answer in found] == [answer.tokens for answer in expected]
    assert [answer["passes"] for answer in found] == [answer.passes for answer in expected]
