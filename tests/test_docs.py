"""Everything that the documentation shows is true: blocks and scripts run, links lead to files, names are there.

Documents are the README, CONTRIBUTING.md and docs/*.md; scripts are docs/examples/*.py.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import lsp
import lsp.integrations
import lsp_kernels
from tests.support import ROOT, import_or_skip, modules_of

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [*PAGES, *ROOT.glob("CONTRIBUTING.md")]
SCRIPTS = sorted((ROOT / "docs/examples").glob("*.py"))
BLOCK = re.compile(r"```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
NEEDS_LM_EVAL = re.compile(r"^ *(import|from) lm_eval\b", re.MULTILINE)
BLOCKS = [
    pytest.param(
        textwrap.dedent(block),
        id=f"{path.name}-{i}",
        marks=[pytest.mark.evaluation] if NEEDS_LM_EVAL.search(block) else [],
    )
    for path in DOCUMENTS
    for i, block in enumerate(BLOCK.findall(path.read_text("utf-8")))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "documentation.py"  # Triton reads the source of its kernels
    path.write_text(block, "utf-8")
    module = ModuleType("documentation")  # dataclasses look for the module that they are written in
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(lsp.Scheduler, "registered", dict(lsp.Scheduler.registered))  # examples register their own
    exec(compile(block, str(path), "exec"), module.__dict__)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_runs(script: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_to_files(path: Path) -> None:
    prose = BLOCK.sub("", path.read_text("utf-8"))  # code may look like a link
    for target in re.findall(r"\]\(([^)#:]+)\)", prose):
        assert (path.parent / target).exists(), target


def with_examples(package) -> list[str]:
    """Modules of a package in whose source there is an example."""
    names = [package.__name__, *modules_of(package)]
    sources = {name: find_spec(name).origin for name in names}
    return [name for name, path in sources.items() if path.endswith(".py") and ">>> " in Path(path).read_text("utf-8")]


@pytest.mark.parametrize("name", [*with_examples(lsp_kernels), *with_examples(lsp)])
def test_docstring_examples_hold(name: str) -> None:
    result = doctest.testmod(import_or_skip(name))
    assert result.attempted > 0
    assert result.failed == 0


PACKAGES = [lsp_kernels, lsp, lsp.models, lsp.integrations]
PACKAGES += [getattr(lsp.integrations, name) for name in lsp.integrations.__all__]


def names_shown(text: str) -> set[str]:
    """Qualified names in a page: those in its sentences and code, and those that its Python blocks import."""
    found = re.findall(r"\blsp(?:_kernels)?(?:\.\w+)+", text)
    for block in BLOCK.findall(text):
        imported = {}
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        found += imported.values()
        found += [
            f"{imported[owner]}.{name}" for owner, name in re.findall(r"\b(\w+)\.(\w+)", block) if owner in imported
        ]
    return {name[: dot.start()] for name in found for dot in re.finditer(r"\.|$", name)}


SHOWN = set().union(*(names_shown(path.read_text("utf-8")) for path in PAGES))


def test_names_are_shown_by_sentences_imports_and_attributes() -> None:
    page = "Use `lsp.one`.\n```python\nfrom lsp.a import two as b\nb.three()\n```\nAlso four; lsp_kernels.five.six."
    expected = {"lsp", "lsp.one", "lsp.a", "lsp.a.two", "lsp.a.two.three", "lsp_kernels", "lsp_kernels.five"}
    assert names_shown(page) == expected | {"lsp_kernels.five.six"}


PUBLIC = {f"{package.__name__}.{name}": getattr(package, name) for package in PACKAGES for name in package.__all__}


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_is_documented(name: str) -> None:
    """By its qualified name; what two packages export, such as lsp.load and lsp.models.load, by one of its names."""
    thing = PUBLIC[name]
    names = {other for other in PUBLIC if PUBLIC[other] is thing}
    assert thing.__doc__
    assert names & SHOWN, f"README.md and docs/ show none of {sorted(names)}"
