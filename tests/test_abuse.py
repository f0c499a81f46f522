"""The count of bad inputs: by area, from the outcomes of a run, into a page that is otherwise left as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.abuse import BEGIN, END, Count, replaced
from tests.support import ROOT

CASES = """
import pytest
abuse = pytest.mark.abuse("sandbox")
@abuse
@pytest.mark.parametrize("n", range(3))
def test_held(n): pass
@abuse
def test_not_held(): raise ValueError
@abuse
def test_not_tried(): pytest.skip()
@pytest.fixture
def broken():
    yield
    raise ValueError
@abuse
def test_harm_that_shows_later(broken): pass
def test_something_else(): pass
"""
CONFTEST = """
from pathlib import Path
from tests.abuse import Count, area_of
def pytest_configure(config):
    config.addinivalue_line("markers", "abuse(area): as in the project")
    config.pluginmanager.register(Count(Path("page.md")))
def pytest_collection_modifyitems(items):
    for item in items: area_of(item)
"""


def pytest_in(folder: Path, cases: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_cases.py").write_text(cases)
    (folder / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{CONFTEST}")
    (folder / "page.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_outcomes_are_counted_into_the_page(tmp_path: Path) -> None:
    pytest_in(tmp_path, CASES)
    page = (tmp_path / "page.md").read_text()
    assert page.startswith(
        f"before\n{BEGIN}\n| area | bad inputs tried | held |\n|---|---:|---:|\n| operators | 0 | 0 |"
    )
    assert page.endswith(f"| sandbox | 5 | 3 |\n| install | 0 | 0 |\n| **all** | 5 | 3 |\n{END}\nafter\n")


def test_an_area_that_is_none_is_refused(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, CASES.replace('"sandbox"', '"sand"'))
    assert done.returncode != 0
    assert "Invalid area of test_cases.py::test_held[0]: expected one of operators" in done.stdout + done.stderr


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="Invalid page"):
        replaced("nothing", Count(Path()).table())
