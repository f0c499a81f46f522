"""What an installation is: its wheel, its backends, and one sentence for everything that is missing.

tests/install/test_ways.py installs in every way into new environments, which takes minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from lsp.extras import EXTRAS
from lsp_kernels import info
from lsp_kernels._ops import SCHEMAS
from tests.install.compiler import compiler
from tests.install.environments import NO_COMPILER, Environment, copy_of_the_source
from tests.support import ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text()


def run(*command: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


# The wheel


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the repository that builds fast."""
    folder = copy_of_the_source(tmp_path / "source")
    setup = folder / "setup.py"
    setup.write_text(setup.read_text().replace('"-O3"', '"-O0"'))
    return folder


WITHOUT_TORCH = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path('setup.py', run_name='__main__')"


def build_wheel(source: Path, **environment: str) -> Path:
    """The wheel, built where torch cannot be imported."""
    result = run("-c", WITHOUT_TORCH, "-q", "bdist_wheel", cwd=source, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the C++ kernels were not built") == ("CXX" in environment)
    (wheel,) = (source / "dist").iterdir()
    return wheel


def has_extension(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"lsp_kernels/commit.py", "lsp_kernels/py.typed", "lsp/py.typed", "lsp_command.py"} <= {*names}
    assert {f"lsp/evaluation/tasks/{path.name}" for path in (ROOT / "lsp/evaluation/tasks").glob("*.yaml")} <= {*names}
    return any("_C" in name for name in names)


def test_the_extension_needs_no_torch_to_build_and_serves(source: Path, tmp_path: Path) -> None:
    compiler()
    wheel = build_wheel(source)
    assert has_extension(wheel)
    assert "-cp310-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "elsewhere")
    report = run("-m", "lsp_kernels.info", cwd=tmp_path / "elsewhere").stdout
    assert f"{tmp_path / 'elsewhere'}/lsp_kernels/_C" in report
    assert report.count("CPU: C++") == len(SCHEMAS)


@pytest.mark.parametrize("missing", ["/nonexistent/c++", "false"], ids=["no compiler", "a compiler that fails"])
def test_a_wheel_without_the_extension_is_tagged_as_pure_python(source: Path, missing: str) -> None:
    for folder in ("lsp_kernels", f"build/lib.linux-x86_64-cpython-3{sys.version_info.minor}/lsp_kernels"):
        (source / folder).mkdir(parents=True, exist_ok=True)
        (source / folder / "_C.abi3.so").write_text("left behind by an earlier build of other sources")
    wheel = build_wheel(source, CC=missing, CXX=missing)
    assert not has_extension(wheel)
    assert wheel.name.endswith("-py3-none-any.whl")


def test_a_required_extension_that_fails_to_build_is_an_error(source: Path) -> None:
    result = run("setup.py", "-q", "bdist_wheel", cwd=source, LSP_REQUIRE_EXTENSION="1", **NO_COMPILER)
    assert result.returncode == 1
    assert "/nonexistent/c++" in result.stderr
    assert not (source / "dist").exists()


def test_a_source_distribution_has_all_that_the_build_needs(source: Path) -> None:
    assert run("setup.py", "-q", "sdist", cwd=source).returncode == 0
    (path,) = (source / "dist").iterdir()
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"csrc/{file.name}" for file in (ROOT / "csrc").iterdir()} < names


# What it brings


def test_the_extras_bring_what_the_sentences_promise(source: Path) -> None:
    assert run("setup.py", "-q", "dist_info", cwd=source).returncode == 0
    (path,) = source.glob("*.dist-info/METADATA")
    needs = message_from_bytes(path.read_bytes()).get_all("Requires-Dist")
    assert [need for need in needs if "extra ==" not in need] == ["torch>=2.10"]
    for extra, packages in EXTRAS.items():
        found = [re.split(r"[\[><=~!;\s]", need)[0] for need in needs if re.search(f"extra == .{extra}.", need)]
        assert sorted(name.replace("-", "_") for name in found) == sorted(packages)


def test_the_first_lines_of_the_readme_name_the_extra() -> None:
    first = (ROOT / "README.md").read_text().partition("\n## ")[0]
    assert "pip install '.[lsp]'" in first
    assert "no-build-isolation" not in first


COMMAND = "sys.argv = ['lsp', 'generate', 'x', '--max-new-tokens', '2']; import lsp_command; lsp_command.main()"
EVAL = "sys.argv = ['lsp', 'eval', '--tasks', 'lsp_tiny_code']; import lsp_command; lsp_command.main()"
PLAY = "sys.argv = ['lsp', 'play']; import lsp_command; lsp_command.main()"
MISSING = {  # a package that is not installed and code that needs it: the last line on stderr, before the extra
    ("numpy", "import lsp"): "ModuleNotFoundError: lsp needs numpy",
    ("numpy", "import lsp.tracing"): "ModuleNotFoundError: lsp needs numpy",
    ("safetensors", "import lsp; lsp.load('tiny')"): "ModuleNotFoundError: reading a checkpoint needs safetensors",
    ("transformers", "import lsp; lsp.load_tokenizer('tiny')"): (
        "ModuleNotFoundError: a tokenizer or an Auto class needs transformers"
    ),
    ("huggingface_hub", "import lsp; lsp.load('some/model')"): (
        "ModuleNotFoundError: some/model is not a local folder, and a download needs huggingface_hub"
    ),
    ("rich", "import lsp.tracing.terminal"): "ModuleNotFoundError: showing an answer in a terminal needs rich",
    ("matplotlib", "from lsp.evaluation.plot import plot; plot([], 'x.svg')"): (
        "ModuleNotFoundError: a plot needs matplotlib"
    ),
    ("matplotlib", "import lsp.tracing.pictures"): "ModuleNotFoundError: a picture of a trace needs matplotlib",
    ("starlette", PLAY): "lsp: error: lsp play needs starlette",
    ("uvicorn", PLAY): "lsp: error: lsp play needs uvicorn",
    ("lm_eval", EVAL): "lsp: error: lsp eval needs lm_eval",
    ("numpy", COMMAND): "lsp: error: lsp needs numpy",
    ("typer", COMMAND): "lsp: error: the lsp command needs typer",
    ("rich", COMMAND): "lsp: error: the lsp command needs rich",
    ("safetensors", COMMAND): "lsp: error: reading a checkpoint needs safetensors",
    ("transformers", COMMAND): "lsp: error: a tokenizer or an Auto class needs transformers",
}
FORKS = """
import os, sys, traceback
import torch  # once for all of them, because it takes seconds
for number, (package, code) in enumerate({cases}):
    if os.fork() == 0:
        os.dup2(os.open(f"{{number}}.txt", os.O_CREAT | os.O_WRONLY), 2)
        sys.modules[package] = None
        try:
            exec(code, {{"sys": sys}})
            status = 0
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else print(leaving.code, file=sys.stderr) or 1
        except Exception:
            status = traceback.print_exc() or 1
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, str]]:
    """For every case of MISSING: the exit code and what was said on stderr."""
    folder = tmp_path_factory.mktemp("missing")
    result = run("-W", "ignore", "-c", FORKS.format(cases=[*MISSING]), cwd=folder, PYTHONPATH=str(ROOT))
    codes = [int(line) for line in result.stdout.splitlines() if line.isdigit()]
    assert len(codes) == len(MISSING), result.stderr
    return {case: (codes[i], (folder / f"{i}.txt").read_text()) for i, case in enumerate(MISSING)}


@pytest.mark.parametrize("case", MISSING, ids=" | ".join)
def test_a_missing_package_is_one_sentence_that_names_the_extra(
    said: dict[tuple[str, str], tuple[int, str]], case: tuple[str, str]
) -> None:
    status, text = said[case]
    extra = {"matplotlib": "plots", "lm_eval": "eval", "starlette": "play", "uvicorn": "play"}.get(case[0], "lsp")
    assert text.splitlines()[-1:] == [f"{MISSING[case]}: pip install 'lsp-kernels[{extra}]'"], text
    assert status == 1
    assert "During handling" not in text
    assert case[1] not in (COMMAND, EVAL, PLAY) or "Traceback" not in text


# What serves

BLOCKED = """
import importlib.abc, sys, warnings
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("triton", "transformers", "numpy") or name == "lsp_kernels._C":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import torch
with warnings.catch_warnings(record=True) as caught:
    import lsp_kernels
    for _ in range(3):
        stats = lsp_kernels.token_stats(torch.eye(3))
assert stats.tokens.tolist() == [0, 1, 2]
caught = [str(w.message) for w in caught if "reference serves" in str(w.message)]
assert len(caught) == 1, caught
assert "have a C++ compiler" in caught[0] and "LSP_REQUIRE_EXTENSION=1" in caught[0], caught
"""


@pytest.mark.abuse("install")
def test_torch_alone_is_enough_and_the_reference_serves_with_one_warning_that_says_what_to_do() -> None:
    result = run("-c", BLOCKED)
    assert result.returncode == 0, result.stderr


def test_info_says_who_serves_what() -> None:
    result = run("-m", "lsp_kernels.info")
    assert result.returncode == 0
    for word in ("torch", "commit_prefix", "instruction set", "CPU: C++"):
        assert word in result.stdout


@pytest.mark.abuse("install")
def test_info_says_what_to_do_about_a_missing_backend() -> None:
    result = run("-c", BLOCKED + "\nfrom lsp_kernels.info import main\nsys.argv = ['info']\nmain()")
    assert "reinstall lsp-kernels from its source" in result.stdout
    assert "pip install 'lsp-kernels[triton]'" in result.stdout


def test_the_triton_that_is_tested_is_the_one_that_is_installed() -> None:
    pinned = re.search(r"^triton==(\d+\.\d+)", (ROOT / "requirements-dev.txt").read_text(), re.MULTILINE)[1]
    extra = re.search(r'^triton = \["triton>=(\d+\.\d+)\.\d+,<(\d+\.\d+)"', PYPROJECT, re.MULTILINE)
    major, minor = map(int, pinned.split("."))
    assert (info.TESTED_TRITON, *extra.groups()) == (pinned, pinned, f"{major}.{minor + 1}")


@pytest.mark.parametrize(
    ("version", "note"),
    [("3.7.9", "it is installed"), ("3.8.0", "3.8.0 is installed; the kernels are tested with 3.7")],
)
def test_info_tells_of_a_triton_that_is_not_tested(monkeypatch: pytest.MonkeyPatch, version: str, note: str) -> None:
    monkeypatch.setattr(info.importlib.metadata, "version", lambda _: version)
    assert info.triton_note() == note


@pytest.mark.abuse("install")
def test_info_never_fails() -> None:
    result = run(
        "-c",
        BLOCKED.split("import torch")[0] + "sys.modules['torch'] = None\nimport runpy, types\n"
        "package = sys.modules['lsp_kernels'] = types.ModuleType('lsp_kernels')\n"
        "package.__path__ = ['lsp_kernels']\n"
        "runpy.run_module('lsp_kernels.info', run_name='__main__')",
    )
    assert result.returncode == 0, result.stderr
    assert "unavailable" in result.stdout


@pytest.mark.install
def test_pip_installs_where_there_is_no_compiler(source: Path, tmp_path: Path) -> None:
    import torch

    environment = Environment(tmp_path / "environment", Path(torch.__file__).parents[1])
    environment.out("pip install -q --no-build-isolation --no-deps .", source, **NO_COMPILER)
    report = environment.out("python -m lsp_kernels.info", tmp_path)
    assert report.count("CPU: reference") == len(SCHEMAS)
    assert str(environment.packages) in environment.out(
        "python -c 'import lsp_kernels; print(lsp_kernels.__file__)'", tmp_path
    )
    assert "generate" in environment.out("lsp --help", tmp_path)
