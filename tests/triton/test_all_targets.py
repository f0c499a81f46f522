"""Every shipped configuration on every architecture. Run by ``make test-targets``, which renews docs/targets.md."""

from __future__ import annotations

import pytest

from lsp_kernels.triton import builds
from lsp_kernels.triton.aot import TARGETS, Compiled
from lsp_kernels.triton.report import rows_of, write_document
from tests.triton.gates import violations

pytestmark = pytest.mark.targets


def test_every_shipped_configuration_passes_every_gate() -> None:
    failures: list[str] = []

    def inspect(made: builds.Build, compiled: Compiled) -> None:
        failures.extend(f"{made.architecture} {made.name}: {problem}" for problem in violations(made, compiled))

    rows = list(rows_of((b for name in TARGETS for b in builds.shipped(name)), inspect))
    assert failures == []
    write_document(rows, ["commit"])
