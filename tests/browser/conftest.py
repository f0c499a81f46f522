"""One browser for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    program = chromium.find()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(chromium.NAMES)} is in the path")
    out = chromium.Chromium(program, tmp_path_factory.mktemp("profile"))
    yield out
    out.close()
