"""Every way to install, each into a new environment: ``make test-install``.

torch is installed once; all environments but that of the README's lines see it from there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lsp_kernels._ops import SCHEMAS
from tests.install.compiler import compiler
from tests.install.environments import NO_COMPILER, Environment, copy_of_the_source
from tests.support import ROOT

pytestmark = pytest.mark.install
PROBLEM = "lsp generate --chat 'Use 3, 5 and 7 to make 15.'"


@pytest.fixture(scope="module")
def torch_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which torch and what it needs are installed, and no more."""
    environment = Environment(tmp_path_factory.mktemp("torch") / "environment")
    environment.out("pip install -q torch", ROOT)
    return environment.packages


@pytest.fixture
def environment(torch_packages: Path, tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment", torch_packages)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A clean copy of the repository. The tests need a C++ compiler."""
    compiler()
    return copy_of_the_source(tmp_path / "source")


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """An empty folder to run in, so that nothing is imported from the source by accident."""
    (tmp_path / "away").mkdir()
    return tmp_path / "away"


def served(environment: Environment, away: Path) -> str:
    """The backend of all operations on CPU tensors."""
    info = environment.out("python -m lsp_kernels.info", away)
    (backend,) = set(re.findall(r"CPU: (C\+\+|reference)", info))
    assert info.count(f"CPU: {backend}") == len(SCHEMAS)
    return backend


def test_the_lines_of_the_readme(source: Path, away: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    (block,) = re.findall(r"```\n(pip install .*?)```", (source / "README.md").read_text(), re.DOTALL)
    for line in block.splitlines():
        environment.out(line, source)
    assert served(environment, away) == "C++"
    assert "= 15." in environment.out(PROBLEM, away)
    environment.out("python -W error::UserWarning -c 'import lsp; lsp.load(\"tiny\")'", away)


def test_the_kernels_alone(environment: Environment, source: Path, away: Path) -> None:
    environment.out("pip install -q .", source)
    assert served(environment, away) == "C++"
    sentence = "lsp needs numpy: pip install 'lsp-kernels[lsp]'"
    assert environment.run("python -c 'import lsp'", away).stderr.endswith(f"ModuleNotFoundError: {sentence}\n")
    command = environment.run("lsp --help", away)
    assert (command.returncode, command.stdout, command.stderr) == (1, "", f"lsp: error: {sentence}\n")


def test_the_address_of_a_repository(environment: Environment, source: Path, away: Path) -> None:
    commit = "git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm all"
    subprocess.run(commit, cwd=source, shell=True, check=True)
    environment.out(f"pip install -q git+file://{source}", away)
    assert served(environment, away) == "C++"


def test_no_compiler(environment: Environment, source: Path, away: Path) -> None:
    environment.out("pip install -q .", source, **NO_COMPILER)
    assert served(environment, away) == "reference"
    code = "import torch, lsp_kernels; print(lsp_kernels.token_stats(torch.eye(3)).tokens.tolist())"
    result = environment.run(["python", "-c", code], away)
    assert result.stdout == "[0, 1, 2]\n"
    assert "reinstall lsp-kernels from its source" in result.stderr
    refused = environment.run("pip install --force-reinstall .", source, LSP_REQUIRE_EXTENSION="1", **NO_COMPILER)
    assert refused.returncode == 1
    assert "/nonexistent/c++" in refused.stdout + refused.stderr


def test_a_wheel_built_elsewhere(
    environment: Environment, torch_packages: Path, source: Path, away: Path, tmp_path: Path
) -> None:
    builder = Environment(tmp_path / "builder")
    builder.out(f"pip wheel -q --no-deps -w {away} .", source)
    (wheel,) = away.iterdir()
    assert "-cp310-abi3-linux_" in wheel.name
    shutil.rmtree(source)
    environment.out(f"pip install -q {wheel}", away, **NO_COMPILER)
    assert served(environment, away) == "C++"


def test_a_source_distribution(environment: Environment, source: Path, away: Path, tmp_path: Path) -> None:
    builder = Environment(tmp_path / "builder")
    builder.out("pip install -q setuptools", away)
    builder.out(["python", "-c", f"import setuptools.build_meta as b; b.build_sdist({str(away)!r})"], source)
    (path,) = away.iterdir()
    environment.out(f"pip install -q {path}", away)
    assert served(environment, away) == "C++"


def test_an_editable_install(environment: Environment, source: Path, away: Path) -> None:
    environment.out("pip install -q -e .", source)
    assert served(environment, away) == "C++"
    place = environment.out(["python", "-c", "import lsp_kernels; print(lsp_kernels.__file__)"], away)
    assert place.startswith(str(source))


def test_setuptools_of_a_stock_python(source: Path, away: Path, tmp_path: Path) -> None:
    """It comes with Python 3.11 and is older than today's form of pyproject.toml; torch is not there at all."""
    builder = Environment(tmp_path / "builder")
    builder.out("pip install -q setuptools==65.5.0 wheel", away)
    builder.out(f"pip wheel -q --no-build-isolation --no-deps -w {away} .", source, LSP_REQUIRE_EXTENSION="1")
    (wheel,) = away.iterdir()
    assert "-cp310-abi3-linux_" in wheel.name
