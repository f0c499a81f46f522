"""``make hub``: lays out the kernels for the Hugging Face kernels hub, and proves the folder.

The folder holds a copy of `lsp_kernels` for each backend, under an operator namespace of its own, so that it can be
loaded beside the installed package and beside other versions of itself. The version is the last one in hub/api.json,
which records the public names; a test compares them with ``lsp_kernels.__all__``.

    python .ci/hub.py FOLDER                  lay it out with the compiler at hand
    python .ci/hub.py FOLDER --prove PYTHON   link for glibc 2.28, audit the library, run the kernels' tests on the copy
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from string import Template
from typing import Any

from building import ROOT, audit_library, require, run, two_compilers

NAME, MODULE, LICENSE = "lsp-kernels", "lsp_kernels", "apache-2.0"
HUB = ROOT / ".ci/hub"
TORCH = "2.10"  # the oldest torch whose stable ABI the library uses
LEFT_OUT = shutil.ignore_patterns("*.so", "__pycache__")
NOT_HASHED = {"metadata.json", "metadata.json.sigstore"}


def variants() -> dict[str, dict[str, Any]]:
    """Name and backend of each variant. A CPU needs the library; a GPU's kernels are Triton, thus Python alone."""
    tables = (ROOT / MODULE / "triton/configs/device.py").read_text()
    nvidia = re.findall(r"sm_(\d+)(\d)", re.findall(r"^NVIDIA = .*", tables, re.MULTILINE)[0])
    library = f"torch-stable-abi{TORCH.replace('.', '')}-cpu-{platform.machine()}-{platform.system().lower()}"
    return {
        library: {"type": "cpu"},
        "torch-cuda": {"type": "cuda", "archs": [f"{major}.{minor}" for major, minor in nvidia]},
    }


def version() -> int:
    return max(int(number) for number in json.loads((HUB / "api.json").read_text()))


def identity() -> str:
    """What tells one source from another, as the operator namespaces of two of them must differ."""
    files = [*(ROOT / MODULE).rglob("*.py"), *(ROOT / "csrc").iterdir(), ROOT / "setup.py"]
    text = b"".join(str(path.relative_to(ROOT)).encode() + path.read_bytes() for path in sorted(files))
    return hashlib.sha256(text).hexdigest()[:7]


def lay_out(folder: Path, compiler: str | None = None) -> None:
    """The whole folder, new."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, backend in variants().items():
        add_variant(folder / "build" / name, backend, compiler)
    words = {"name": NAME, "module": MODULE, "version": version(), "license": LICENSE, "torch": TORCH}
    for source in ("build.toml", "README.md"):
        (folder / source).write_text(Template((HUB / source).read_text()).substitute(words))
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copytree(ROOT / "csrc", folder / "csrc")  # build.toml names these files


def add_variant(variant: Path, backend: dict[str, Any], compiler: str | None) -> None:
    """A copy of the package, for a CPU with its library, and what `kernels` reads of it."""
    name = f"_{MODULE}_{backend['type']}_{identity()}"
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, name)
        shutil.copytree(ROOT / MODULE, copy, ignore=LEFT_OUT)
        rename(copy / "_namespace.py", name)
        if backend["type"] == "cpu":
            compile_library(Path(temporary), name, compiler)
        shutil.copytree(copy, variant, ignore=shutil.ignore_patterns("__pycache__"))
    (variant / MODULE).mkdir()
    shutil.copy(HUB / "one_folder_deeper.py", variant / MODULE / "__init__.py")
    metadata = {
        "name": NAME,
        "id": name,
        "version": version(),
        "license": LICENSE,
        "python-depends": [],
        "kernel-depends": [],
        "backend": backend,
        "digest": {"algorithm": "sha256", "files": digests(variant)},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")


def rename(path: Path, name: str) -> None:
    text, count = re.subn(r'^NAMESPACE = ".*"$', f'NAMESPACE = "{name}"', path.read_text(), flags=re.MULTILINE)
    require(count == 1, f"one namespace in {path.name}", count)
    path.write_text(text)


def compile_library(folder: Path, package: str, compiler: str | None) -> None:
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    shutil.copy(ROOT / "setup.py", folder)
    chosen = {} if compiler is None else {"CC": compiler, "CXX": compiler}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    run(*command, folder=folder, LSP_PACKAGE=package, LSP_REQUIRE_EXTENSION="1", **chosen)


def digests(variant: Path) -> dict[str, str]:
    """SHA-256 of every file but the metadata, in base64, by its path in the variant."""
    files = sorted(path for path in variant.rglob("*") if path.is_file() and path.name not in NOT_HASHED)
    return {
        path.relative_to(variant).as_posix(): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in files
    }


def prove(folder: Path, python: str) -> None:
    """The library is one for every Linux; `kernels` itself loads the copy, which passes the tests of the kernels."""
    (library,) = folder.rglob("_C*.so")
    audit_library(library)
    for tests in (["tests/hub"], ["-p", "tests.hub.plugin", "tests/kernels"]):
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", *tests]
        environment = {"LSP_HUB_FOLDER": str(folder), "LSP_HUB_LOADER": "kernels", "OMP_WAIT_POLICY": "PASSIVE"}
        if subprocess.run(command, cwd=ROOT, env=os.environ | environment).returncode:
            sys.exit(f"make hub: {tests[-1]} fail on {folder}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prove", metavar="PYTHON")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.prove is None:
        lay_out(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        lay_out(folder, str(two_compilers(Path(temporary))))
    prove(folder, given.prove)
    print(f"wrote {folder}, version {version()}")


if __name__ == "__main__":
    main()
