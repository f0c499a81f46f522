"""What ``make wheel`` and ``make hub`` share: a library that any Linux since glibc 2.28 can load, and the proof of it.

gcc compiles and zig links, against the symbols of glibc 2.28 and the libstdc++ that torch itself uses. zig alone would
link its own C++ library into the result, and an error that it throws through torch ends the process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GLIBC = (2, 28)
NEWEST = {"GLIBC": GLIBC, "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}  # what manylinux_2_28 has
ZIG = [sys.executable, "-m", "ziglang"]


def run(*command: object, folder: Path = ROOT, **environment: str) -> str:
    result = subprocess.run(
        [str(word) for word in command], cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    if result.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{result.stdout}")
    return result.stdout


def require(condition: bool, what: str, got: Any) -> None:
    if not condition:
        sys.exit(f"expected {what}, got {got}")


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


def audit_library(library: Path) -> None:
    """The stable ABIs of Python and torch, and no symbol that is younger than manylinux_2_28."""
    program = Path(sys.executable).parent / "torch-abi-audit"
    found = json.loads(run(program, "--json", "--check", "both", library))
    (extension,) = found["extensions"]
    require(extension["cpython"]["compliant"], "Python's stable ABI", extension["cpython"])
    torch = extension["torch"]
    stable = torch["stable"] and not torch["unknown_shim_symbols"] and torch["min_torch_version"] == "2.10.0"
    require(stable, "torch's stable ABI of 2.10", torch)

    declared = set(re.findall(r"\b((?:aoti_)?torch_\w+)\(", (ROOT / "csrc/torch_abi.h").read_text()))
    unknown = [name for name in unversioned(library) if name not in declared and not name.startswith("Py")]
    require(not unknown, "a version for every symbol that is not torch's or Python's", unknown)
    for name, version in versioned(library):
        require(version <= NEWEST.get(name, version), f"symbols of {name} up to {NEWEST.get(name)}", version)


def versioned(library: Path) -> list[tuple[str, tuple[int, ...]]]:
    """The versions of the symbols that a library asks for, such as ``("GLIBC", (2, 14))``."""
    found = re.findall(r"@([A-Z]+)_([0-9.]+)", run("nm", "-D", "--undefined-only", library))
    return [(name, tuple(int(part) for part in version.split("."))) for name, version in found]


def unversioned(library: Path) -> list[str]:
    """The symbols that the loader may take from anywhere: those that glibc 2.28 does not have would be here."""
    lines = [line.split() for line in run("nm", "-D", "--undefined-only", library).splitlines()]
    return [name for kind, name in lines if kind == "U" and "@" not in name]
