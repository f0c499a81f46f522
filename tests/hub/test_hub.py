"""What ``make hub`` lays out: a folder whose copy of the kernels works beside the installed package, with its version.

Here a stand-in for the package `kernels` loads the copy, which is compiled in a hurry, and some of the kernels' tests
run on it. ``make hub`` runs these tests with `kernels` itself on the real folder, LSP_HUB_FOLDER, and then all of the
kernels' tests.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch

import lsp_kernels
from lsp_kernels.triton.configs.device import NVIDIA
from tests.hub import loader
from tests.support import ROOT

API = ROOT / ".ci/hub/api.json"
REAL = os.environ.get("LSP_HUB_LOADER") == "kernels"


def run(*command: object, **environment: str) -> str:
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, laid out from a copy of the sources in which the compiler need not optimise."""
    if given := os.environ.get("LSP_HUB_FOLDER"):
        return Path(given)
    compiler = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"no C++ compiler here ({compiler})")
    source = tmp_path_factory.mktemp("source")
    for name in (".ci", "csrc", "lsp_kernels"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    setup = (ROOT / "setup.py").read_text()
    assert setup.count('"-O3"') == 1
    (source / "setup.py").write_text(setup.replace('"-O3"', '"-O0"'))
    shutil.copy(ROOT / "LICENSE", source)
    folder = tmp_path_factory.mktemp("hub") / "folder"
    run(source / ".ci/hub.py", folder)
    return folder


@pytest.fixture(params=["cpu", "cuda"])
def variant(request: pytest.FixtureRequest, folder: Path) -> tuple[Path, dict, str]:
    """A variant's folder, its metadata and its backend."""
    found = [path for path in (folder / "build").iterdir() if loader.suits(path.name, request.param)]
    assert len(found) == 1
    return found[0], json.loads((found[0] / "metadata.json").read_text()), request.param


def test_the_metadata_says_what_the_hub_asks_for(variant: tuple[Path, dict, str]) -> None:
    path, metadata, backend = variant
    assert metadata["name"].replace("-", "_") == "lsp_kernels"
    assert metadata["id"].isidentifier()
    assert metadata["id"].startswith(f"_lsp_kernels_{backend}_")
    assert metadata["version"] == max(map(int, json.loads(API.read_text())))
    assert metadata["backend"]["type"] == backend
    assert list(path.glob("_C*.so")) == [] if backend == "cuda" else len(list(path.glob("_C*.so"))) == 1
    assert f'NAMESPACE = "{metadata["id"]}"' in (path / "_namespace.py").read_text()


def test_the_gpus_are_those_of_the_tables(folder: Path) -> None:
    metadata = json.loads((folder / "build/torch-cuda/metadata.json").read_text())
    assert [f"sm_{arch.replace('.', '')}" for arch in metadata["backend"]["archs"]] == [*NVIDIA]


def test_the_digest_is_that_of_every_file(variant: tuple[Path, dict, str]) -> None:
    path, metadata, _ = variant
    files = [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    expected = {
        str(file.relative_to(path)): base64.b64encode(hashlib.sha256(file.read_bytes()).digest()).decode()
        for file in files
        if file != path / "metadata.json"
    }
    assert metadata["digest"] == {"algorithm": "sha256", "files": expected}


def test_the_build_file_agrees_with_the_variants(folder: Path) -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    build = tomllib.loads((folder / "build.toml").read_text())
    metadata = [json.loads(path.read_text()) for path in folder.glob("build/*/metadata.json")]
    assert {(build["general"]["version"], build["general"]["name"], build["general"]["license"])} == {
        (each["version"], each["name"], each["license"]) for each in metadata
    }
    assert set(build["general"]["backends"]) == {each["backend"]["type"] for each in metadata}
    abi = build["torch"]["stable-abi"]["cpu"].replace(".", "")
    assert len(list(folder.glob(f"build/torch-stable-abi{abi}-cpu-*"))) == 1
    compiled = {Path(name).name for name in build["kernel"]["cpu"]["src"]}
    assert compiled == {path.name for path in (ROOT / "csrc").glob("*.cpp")}
    assert all((folder / name).is_file() for name in build["kernel"]["cpu"]["src"])


def test_the_page_names_this_version_and_no_placeholder(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    assert f"version={max(map(int, json.loads(API.read_text())))}" in page
    assert "$" not in page + (folder / "build.toml").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    loaded = loader.load(folder)
    scope = {"lsp_kernels": loaded}
    exec("\n".join(line for line in code.splitlines() if "get_kernel" not in line), scope)
    assert 0 < len(scope["tokens"]) <= 32


def test_an_old_loader_finds_the_same_names_one_folder_deeper(variant: tuple[Path, dict, str]) -> None:
    path, metadata, backend = variant
    loaded = loader.load(path.parents[1], backend)
    inside = importlib.util.spec_from_file_location(f"old_{metadata['id']}", path / "lsp_kernels/__init__.py")
    module = importlib.util.module_from_spec(inside)
    inside.loader.exec_module(module)
    assert module.__all__ == lsp_kernels.__all__
    assert module.commit_prefix is loaded.commit_prefix
    assert sys.modules[metadata["id"]] is loaded


KERNEL_TESTS = [
    pytest.param("cpu", ["tests/kernels/test_clamp.py", "tests/kernels/test_cache.py"], id="cpu"),
    pytest.param("cuda", ["tests/test_gpus.py"], id="triton, on a virtual GPU", marks=pytest.mark.targets),
]


@pytest.mark.skipif(REAL, reason="make hub runs all tests of the kernels")
@pytest.mark.parametrize(("backend", "tests"), KERNEL_TESTS)
def test_the_copy_passes_the_kernels_tests_beside_the_installed_package(
    folder: Path, backend: str, tests: list[str]
) -> None:
    environment = {"LSP_HUB_FOLDER": str(folder), "LSP_HUB_BACKEND": backend}
    shown = run("-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "tests.hub.plugin", *tests, **environment)
    assert f"lsp_kernels is _lsp_kernels_{backend}_" in shown
    assert " passed" in shown


def test_a_wrong_copy_fails_the_kernels_tests(folder: Path, tmp_path: Path) -> None:
    """So they do run on the copy."""
    damaged = tmp_path / "hub"
    shutil.copytree(folder, damaged)
    (path,) = damaged.glob("build/torch-stable-abi*/workspace.py")
    assert path.read_text().count("class Workspace") == 1
    path.write_text(path.read_text().replace("class Workspace", "class Damaged"))
    with pytest.raises(AssertionError, match="cannot import name 'Workspace'"):
        run("-m", "pytest", "-p", "tests.hub.plugin", "tests/kernels/test_workspace.py", LSP_HUB_FOLDER=str(damaged))


def public(package: ModuleType) -> dict[str, object]:
    """The public names: a module's own ones, and how functions and classes are called."""
    return {name: described(getattr(package, name)) for name in sorted(package.__all__)}


def described(thing: object) -> object:
    if inspect.ismodule(thing):
        return public(thing)
    parameters = [each.replace(annotation=each.empty) for each in inspect.signature(thing).parameters.values()]
    return str(inspect.Signature(parameters))


def test_the_version_grows_with_the_public_names() -> None:
    recorded = json.loads(API.read_text())
    version = max(recorded, key=int)
    assert [*recorded] == [str(i + 1) for i in range(len(recorded))]
    found = public(lsp_kernels)
    assert found == recorded[version], (
        f"the public names are not those of version {version}. If that was published, record them in {API.name} as "
        f"version {int(version) + 1}, else as {version}:\n{json.dumps(found, indent=2)}"
    )


@pytest.mark.skipif(not REAL, reason="make hub runs it with the package `kernels`")
def test_kernels_itself_reads_the_build_file_the_metadata_and_the_digests(variant: tuple[Path, dict, str]) -> None:
    from kernels._rust import Build, Digest, Metadata

    path, metadata, backend = variant
    assert len(Build.open(path.parents[1]).general.backends) == 2
    read = Metadata.read_from_file(path / "metadata.json")
    assert (read.id, read.version, str(read.name)) == (metadata["id"], metadata["version"], metadata["name"])
    assert str(read.backend.backend_type).lower() == backend
    read.digest.validate(Digest.hash_variant(read.digest.algorithm, path))


@pytest.mark.skipif(not REAL, reason="make hub runs it with the package `kernels`")
def test_kernels_itself_loads_the_copy_that_the_stand_in_loads(folder: Path) -> None:
    import kernels

    loaded = kernels.get_local_kernel(folder, backend="cpu")
    assert loaded is loader.get_local_kernel(folder)
    logits = torch.randn(3, 50)
    assert torch.equal(loaded.token_stats(logits).tokens, lsp_kernels.token_stats(logits).tokens)
    assert loaded.token_stats is not lsp_kernels.token_stats
