"""How the package is built: the same names in every language, relative imports, one namespace, documented names."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import lsp_kernels
from lsp_kernels import PrefixRule, errors, reference, token_stats, vocabulary

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lsp_kernels"
STEPS = ("lowest", "highest", "scored_rows", "stable_length", "snap_to_delimiter", "cut_at_stop", "select", "has_flag")
DEFINITIONS = {
    "lsp_kernels/rule.py": r"^ *def {}\(",
    "csrc/rule.h": r"^  (?:int64_t|bool|Selection) {}\([^;]*\) const {{",
    "lsp_kernels/triton/rule.py": r"^@triton\.jit\ndef {}\(",
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("path", DEFINITIONS)
def test_a_step_of_the_rule_has_the_same_name_in_every_language(path: str, step: str) -> None:
    assert len(re.findall(DEFINITIONS[path].format(step), (ROOT / path).read_text(), re.MULTILINE)) == 1


@pytest.mark.parametrize("path", [*PACKAGE.rglob("*.py"), *(ROOT / "csrc").iterdir()], ids=lambda p: p.name)
def test_guarded_is_the_name_of_the_preset_and_of_nothing_else(path: Path) -> None:
    words = re.findall(r".*guarded.*", path.read_text(), re.IGNORECASE)
    assert [word for word in words if "PrefixRule.guarded()" not in word and "def guarded(cls)" not in word] == []


def submodules() -> list[tuple[ModuleType, str]]:
    """Every package of lsp_kernels with each of its modules."""
    packages = [lsp_kernels]
    for found in pkgutil.walk_packages(lsp_kernels.__path__, "lsp_kernels."):
        if found.ispkg:
            packages.append(importlib.import_module(found.name))
    return [(package, found.name) for package in packages for found in pkgutil.iter_modules(package.__path__)]


@pytest.mark.parametrize(("package", "name"), submodules())
def test_no_module_is_shadowed_by_another_object(package: ModuleType, name: str) -> None:
    module = importlib.import_module(f"{package.__name__}.{name}")
    assert getattr(package, name) is module


@pytest.mark.parametrize("path", [*PACKAGE.rglob("*.py")], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_package_imports_itself_relatively_and_names_its_namespace_once(path: Path) -> None:
    code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
    assert not re.search(r"(?:from|import) lsp_kernels|import_module\(f?\"lsp_kernels|torch\.ops\.lsp|lsp::", code)
    assert ('"lsp"' in code) == (path.name == "_namespace.py")


@pytest.mark.parametrize("folder", ["lsp", "bench", "tests"])
def test_nobody_else_imports_what_is_private_to_the_checks(folder: str) -> None:
    for path in {*(ROOT / folder).rglob("*.py")} - {Path(__file__)}:
        assert not re.search(r"lsp_kernels\._checks|lsp_kernels\.rule import .*as_integer", path.read_text()), path


@pytest.mark.parametrize("module", [lsp_kernels, errors, reference], ids=lambda m: m.__name__)
def test_every_public_name_is_documented_under_its_qualified_name(module: ModuleType) -> None:
    text = (ROOT / "docs/kernels.md").read_text()
    assert [name for name in module.__all__ if f"`{module.__name__}.{name}`" not in text] == []


def test_rest_is_the_deprecated_negative_of_the_log_odds() -> None:
    stats = token_stats(torch.randn(4, 9))
    with pytest.deprecated_call(match="TokenStats.rest is deprecated; use -TokenStats.log_odds"):
        assert torch.equal(stats.rest, -stats.log_odds)


def test_warmup_is_deprecated_and_still_works() -> None:
    with pytest.deprecated_call(match="lsp_kernels.warmup is deprecated; use lsp_kernels.warmup_commit"):
        lsp_kernels.warmup(torch.zeros(4, 10), rule=PrefixRule(snap=False))


def test_a_deprecation_points_at_the_caller() -> None:
    with pytest.warns(DeprecationWarning, match=r"TokenStats\.rest") as caught:
        _ = token_stats(torch.zeros(1, 3)).rest
    assert caught[0].filename == __file__


@pytest.mark.abuse("operators")
def test_check_rule_asks_for_delimiters() -> None:
    with pytest.raises(ValueError, match="expected a vocabulary with delimiters for snap=True, got none"):
        vocabulary.check_rule(PrefixRule(), None)
    vocabulary.check_rule(PrefixRule(snap=False), None)
