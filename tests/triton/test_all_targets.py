"""Every shipped configuration on every architecture. Run by ``make test-targets``, which renews docs/targets."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from lsp_kernels.triton.aot import TARGETS, builds
from lsp_kernels.triton.aot.report import write_family
from tests.triton.gates import examine

pytestmark = pytest.mark.targets


@pytest.mark.parametrize("family", builds.FAMILIES)
def test_every_shipped_configuration_passes_every_gate(family: str) -> None:
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(partial(examine, family), TARGETS))
    assert [failure for _, failures in results for failure in failures] == []
    write_family(family, [row for rows, _ in results for row in rows])
