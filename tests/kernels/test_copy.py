"""A copy of the package under another name and namespace works beside the installed one in the same process.

The copy's C++ and its reference are damaged, so that a call which reached the other package's code would show.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME, NAMESPACE = "other_kernels", "other_namespace"
SIDE_BY_SIDE = """
import importlib, pkgutil, sys
from pathlib import Path

import torch

import other_kernels as copy

for found in pkgutil.walk_packages(copy.__path__, "other_kernels."):
    importlib.import_module(found.name)  # the C++ extension and the Triton modules too
home = Path(copy.__file__).parent
files = [Path(m.__file__) for name, m in sys.modules.items() if name.split(".")[0] == "other_kernels"]
assert len(files) > 25 and all(home in file.parents for file in files)
assert "lsp_kernels" not in sys.modules, "the copy imports the package under its old name"

import lsp_kernels as ours
from lsp_kernels import _ops as our_ops
from other_kernels import _ops as copied_ops

assert Path(our_ops.cpp.__file__).parent != Path(copied_ops.cpp.__file__).parent == home
logits = torch.randn(40, 700)
rule = dict(beta=0.9, snap=False)
expected = ours.reference.commit_prefix(logits, rule=ours.PrefixRule(**rule))
stats = ours.reference.token_stats(logits)
for package, namespace in ((ours, "lsp"), (copy, "other_namespace")):
    for name in our_ops.SCHEMAS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{namespace}::{name}", "CPU"), name
    commit = package.commit_prefix(logits, rule=package.PrefixRule(**rule))
    damaged = -1 - expected.lengths
    assert torch.equal(commit.lengths, expected.lengths if package is ours else damaged), commit.lengths
    assert torch.equal(commit.tokens, expected.tokens) and torch.equal(commit.margins, expected.margins)
    torch.testing.assert_close(package.token_stats(logits).log_odds, stats.log_odds, rtol=0, atol=1e-5)
    q, k, v = torch.randn(3, 5, 2, 32)
    caches = [torch.zeros(1, 2, 8, 32) for _ in range(4)]
    lengths = [torch.tensor(x, dtype=torch.int32) for x in ([0, 5], [0], [3])]
    out = package.suffix_attention(q, k, v, *caches[:2], *lengths)
    torch.testing.assert_close(out, ours.reference.suffix_attention(q, k, v, *caches[2:], *lengths))

sure = torch.tensor([[50.0, 0.0]])
assert ours.reference.token_stats(sure).log_odds.item() == 50
assert copy.reference.token_stats(sure).log_odds.item() == 5
"""


def replace_once(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {path.name}"
    path.write_text(text.replace(old, new))


def run(directory: Path, *command: str, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, *command], cwd=directory, env=os.environ | environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a built copy of the package."""
    compiler = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"no C++ compiler here ({compiler})")
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "lsp_kernels", folder / NAME, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    shutil.copy(ROOT / "setup.py", folder)
    replace_once(folder / NAME / "_namespace.py", 'NAMESPACE = "lsp"', f'NAMESPACE = "{NAMESPACE}"')
    replace_once(folder / NAME / "reference/commit.py", "HIGHEST_LOG_ODDS = 80.0", "HIGHEST_LOG_ODDS = 5.0")
    replace_once(folder / "csrc/sequences.h", "length[b] = chosen.length;", "length[b] = -1 - chosen.length;")
    replace_once(folder / "setup.py", '"-O3"', '"-O0"')  # four times faster to build
    run(folder, "setup.py", "-q", "build_ext", "--inplace", LSP_PACKAGE=NAME)
    assert list((folder / NAME).glob("_C*"))
    return folder


def test_a_copy_runs_its_own_python_and_its_own_cpp_beside_the_package(folder: Path) -> None:
    run(ROOT, "-c", SIDE_BY_SIDE, PYTHONPATH=str(folder))


def test_a_copy_reports_on_itself(folder: Path) -> None:
    run(folder, "-m", f"{NAME}.info")
