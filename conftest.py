"""``pytest`` runs the tests; ``pytest --benchmark`` runs the benchmarks in bench/ instead."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--benchmark", action="store_true", help="run bench/ and close with a table of ratios")


def pytest_configure(config: pytest.Config) -> None:
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if config.getoption("--benchmark") and not named:
        config.args = [str(config.rootpath / "bench")]


def pytest_ignore_collect(collection_path, config: pytest.Config) -> bool | None:
    in_bench = (config.rootpath / "bench") in collection_path.parents
    return True if in_bench and not config.getoption("--benchmark") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    skips = {}
    if not torch.cuda.is_available():
        skips["gpu"] = "no GPU here"
    if "targets" not in config.getoption("-m"):
        skips["targets"] = "takes minutes: make test-targets"
    if "browser" not in config.getoption("-m"):
        skips["browser"] = "starts a browser: make test-browser"
    for item in items:
        for marker, reason in skips.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
