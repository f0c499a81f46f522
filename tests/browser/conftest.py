"""One browser for all tests of pages, and the playground in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium, looks

if TYPE_CHECKING:
    from lsp.play import Playground


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    program = chromium.find()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(chromium.NAMES)} is in the path")
    out = chromium.Chromium(program, tmp_path_factory.mktemp("profile"))
    yield out
    out.close()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Playground]]:
    from tests.play.serving import served  # needs the extra `play`

    with served() as (address, held):
        held.warm_up()
        yield address, held


@pytest.fixture
def page(browser: chromium.Chromium, server: tuple[str, Playground]) -> Iterator[chromium.Chromium]:
    """The playground as it opens; in the end nothing has failed and nobody else was asked."""
    from tests.browser.playing import show

    show(browser, server[0])
    yield browser
    assert looks.problems(browser, server[0]) == []
