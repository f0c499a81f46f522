"""``make wheel``: builds the public wheel for Linux into dist/ and proves it. Every step that fails ends it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from building import GLIBC, ROOT, ZIG, audit_library, require, run, target, two_compilers

TORCH_LIBRARY = "libtorch_cpu.so"
LIBRARY = "lsp_kernels/_C.abi3.so"


def build(folder: Path) -> Path:
    """The wheel of a source distribution, so that nothing else of this folder can get into it."""
    backend = "import setuptools.build_meta as backend, sys; backend.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", backend, folder)
    (source,) = folder.glob("*.tar.gz")
    compiler = str(two_compilers(folder))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, source]
    run(*pip, CC=compiler, CXX=compiler, LSP_REQUIRE_EXTENSION="1")
    (wheel,) = folder.glob("*.whl")
    require(
        wheel.name.endswith(f"-cp310-abi3-linux_{platform.machine()}.whl"), "a wheel for abi3 and Linux", wheel.name
    )
    return wheel


def audit(wheel: Path, unpacked: Path) -> None:
    """The libraries and the versions of symbols that the extension asks for."""
    found = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel))
    version = tuple(int(part) for part in re.findall(r"manylinux_(\d+)_(\d+)", found["sym_tag"])[0])
    require(version <= GLIBC, f"symbols of glibc {GLIBC}", f"{version}: {found['versioned_symbols']}")
    require([*found["external_libs"]] == [TORCH_LIBRARY], f"{TORCH_LIBRARY} alone", found["external_libs"])
    audit_library(unpacked / LIBRARY)


def test(python: str, wheel: Path, folder: Path) -> None:
    """The tests of the kernels, with the packages of the wheel in place of those of the repository."""
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "lsp", "lsp_kernels")
    shutil.copytree(ROOT, folder, ignore=leave)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={folder}", "tests/kernels"]
    if subprocess.run(command, cwd=folder, env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}).returncode:
        sys.exit("make wheel: the tests of the kernels fail with the wheel")


def compile_for_arm(folder: Path) -> None:
    """No machine is at hand to run it, so this proves that the portable path compiles without headers of x86."""
    for source in sorted((ROOT / "csrc").glob("*.cpp")):
        run(
            *ZIG, "c++", "-target", target("aarch64"), "-std=c++17", "-O1", "-fPIC", "-c",
            "-DLSP_NAMESPACE=lsp", "-DLSP_BUILD_FLAGS=\"\"", "-DPy_LIMITED_API=0x030A0000", "-Icsrc",
            f"-I{sysconfig.get_path('include')}", source, "-o", folder / f"{source.stem}.o",
        )  # fmt: skip


def main(python: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build(folder)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(LIBRARY, folder)
        audit(wheel, folder)
        compile_for_arm(folder)
        test(python, wheel, folder / "tested")
        tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}"
        tagged = run(sys.executable, "-m", "wheel", "tags", "--platform-tag", tag, wheel).strip()
        (ROOT / "dist").mkdir(exist_ok=True)
        print(f"wrote {shutil.copy(folder / tagged, ROOT / 'dist')}")


if __name__ == "__main__":
    main(sys.argv[1])
