"""``make wheel``: builds the public wheel for Linux into dist/ and proves it. Every step that fails ends it.

gcc compiles and zig links, against the symbols of glibc 2.28 and the libstdc++ that torch itself uses. zig alone would
link its own C++ library into the wheel, and an error that it throws through torch ends the process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GLIBC = (2, 28)
TORCH_LIBRARY = "libtorch_cpu.so"
LIBRARY = "lsp_kernels/_C.abi3.so"
ZIG = [sys.executable, "-m", "ziglang"]
SOURCES = ("module", "commit", "attention")


def run(*command: object, **environment: str) -> str:
    result = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    if result.returncode:
        sys.exit(f"make wheel: failed: {' '.join(map(str, command))}\n{result.stdout}")
    return result.stdout


def require(condition: bool, what: str, got: Any) -> None:
    if not condition:
        sys.exit(f"make wheel: expected {what}, got {got}")


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


def two_compilers(folder: Path) -> Path:
    """A command that compiles with g++ and links with zig."""
    libraries = [run("g++", f"-print-file-name={name}").strip() for name in ("libstdc++.so", "libgcc_s.so.1")]
    link = shlex.join([*ZIG, "cc", "-target", target(platform.machine())])
    command = folder / "c++"
    command.write_text(
        f'#!/bin/sh\ncase " $* " in *" -shared "*) exec {link} "$@" {shlex.join(libraries)};; esac\nexec g++ "$@"\n'
    )
    command.chmod(0o755)
    return command


def target(machine: str) -> str:
    return f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"


def audit(wheel: Path, unpacked: Path) -> None:
    """The libraries and the versions of symbols that the extension asks for."""
    found = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel))
    version = tuple(int(part) for part in re.findall(r"manylinux_(\d+)_(\d+)", found["sym_tag"])[0])
    require(version <= GLIBC, f"symbols of glibc {GLIBC}", f"{version}: {found['versioned_symbols']}")
    require([*found["external_libs"]] == [TORCH_LIBRARY], f"{TORCH_LIBRARY} alone", found["external_libs"])

    program = Path(sys.executable).parent / "torch-abi-audit"
    found = json.loads(run(program, "--json", "--check", "both", unpacked / LIBRARY))
    (extension,) = found["extensions"]
    require(extension["cpython"]["compliant"], "Python's stable ABI", extension["cpython"])
    torch = extension["torch"]
    stable = torch["stable"] and not torch["unknown_shim_symbols"] and torch["min_torch_version"] == "2.10.0"
    require(stable, "torch's stable ABI of 2.10", torch)

    declared = set(re.findall(r"\b((?:aoti_)?torch_\w+)\(", (ROOT / "csrc/torch_abi.h").read_text()))
    unknown = [name for name in unversioned(unpacked / LIBRARY) if name not in declared and not name.startswith("Py")]
    require(not unknown, "a version for every symbol that is not torch's or Python's", unknown)


def unversioned(library: Path) -> list[str]:
    """The symbols that the loader may take from anywhere: those that glibc 2.28 does not have would be here."""
    lines = [line.split() for line in run("nm", "-D", "--undefined-only", library).splitlines()]
    return [name for kind, name in lines if kind == "U" and "@" not in name]


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
    for name in SOURCES:
        run(
            *ZIG, "c++", "-target", target("aarch64"), "-std=c++17", "-O1", "-fPIC", "-c",
            "-DLSP_NAMESPACE=lsp", "-DLSP_BUILD_FLAGS=\"\"", "-DPy_LIMITED_API=0x030A0000", "-Icsrc",
            f"-I{sysconfig.get_path('include')}", f"csrc/{name}.cpp", "-o", folder / f"{name}.o",
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
