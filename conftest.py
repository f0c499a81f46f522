"""``pytest`` runs the tests and each benchmark once, tiny and untimed; ``pytest --benchmark`` measures bench/ alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from bench import sizes
from tests import abuse, gpus

# The same examples in every run, but for make test-fuzz, which looks for new ones.
settings.register_profile("house", deadline=None, derandomize="LSP_EXAMPLES" not in os.environ)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--benchmark", action="store_true", help="measure bench/ and close with a table of ratios")
    parser.addoption("--tiny", action="store_true", help="measure tiny sizes, to try the report")
    parser.addoption("--run", metavar="FILE", help="keep a measurement there; an older one gets a number in its name")
    parser.addoption("--resume", action="store_true", help="go on with the measurement that --run names")
    parser.addoption("--count-abuse", action="store_true", help="write how many bad inputs were held into the docs")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--count-abuse"):
        config.pluginmanager.register(abuse.Count(config.rootpath / "docs" / "verification.md"))
    sizes.measuring, sizes.tiny_only = config.getoption("--benchmark"), config.getoption("--tiny")
    bench, source = str(config.rootpath / "bench"), config.args_source
    if not sizes.measuring:
        config.option.benchmark_disable = True
        if source is pytest.Config.ArgsSource.TESTPATHS:
            config.args = [*config.args, bench]
    elif source is not pytest.Config.ArgsSource.ARGS:
        config.args = [bench]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    gpus.parametrize(metafunc)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[gpus.RealGpu | gpus.VirtualGpu]:
    """The GPU of this machine, or a virtual one."""
    with gpus.gpu_of(request.param) as found:
        yield found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips = {}
    if not gpus.IS_REAL:
        skips["real_gpu"] = "no GPU here"
    if "install" not in config.getoption("-m"):
        skips["install"] = "takes minutes: make test-install"
    if "targets" not in config.getoption("-m"):
        skips["targets"] = "takes minutes: make test-targets"
    if "browser" not in config.getoption("-m"):
        skips["browser"] = "starts a browser: make test-browser"
    if "evaluation" not in config.getoption("-m"):
        skips["evaluation"] = "needs lm-eval: make test-eval"
    if "openai" not in config.getoption("-m"):
        skips["openai"] = "needs openai: make test-openai"
    if "ray" not in config.getoption("-m"):
        skips["ray"] = "needs ray: make test-ray"
    if "sglang" not in config.getoption("-m"):
        skips["sglang"] = "needs SGLang: make test-sglang"
    if "LSP_EXAMPLES" not in os.environ:
        later = [item for item in items if is_left_out(item)]
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if not is_left_out(item)]
    for item in items:
        abuse.area_of(item)  # a wrong area is noticed here
        for marker, reason in skips.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def is_left_out(item: pytest.Function) -> bool:
    """Of a large table diagonals are kept, so that every value of each parameter is still tried."""
    marker = item.get_closest_marker("one_in")
    return marker is not None and sum(item.callspec.indices.values()) % marker.args[0] != 0
