"""``python -m lsp_kernels.info``: versions, and which backend serves each operation here and why. Never fails.

With ``--targets`` it compiles one build of each kernel for every architecture and prints a table. That needs Triton,
but no GPU.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping

Report = Iterator[tuple[str, str]]
ISAS = ["scalar", "avx2", "avx512", "avx512bf16"]
TESTED_TRITON = "3.7"  # the extra `triton` installs this one; torch for GPUs may bring another


def versions() -> Report:
    """Versions of Python and of the packages that matter here."""
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in ("lsp-kernels", "torch", "triton", "transformers", "numpy"):
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed"


@functools.cache
def served_by_cpp() -> bool:
    """Whether the C++ extension serves CPU tensors."""
    from . import _ops

    return _ops.cpp is not None


def processor() -> Report:
    """Threads, the C++ extension and the instruction set that serves CPU tensors."""
    import torch

    from . import _ops

    yield "threads", str(torch.get_num_threads())
    forced = os.environ.get("LSP_CPU_ISA")
    if _ops.cpp is None:
        yield "C++ extension", f"{_ops.cpp_reason}. {_ops.REPAIRS['cpu']}"
        return
    yield "C++ extension", f"{_ops.cpp.__file__}, built by {_ops.cpp.compiler()} with {_ops.cpp.flags()}"
    widest = _ops.cpp.best_isa()
    known = ISAS[: ISAS.index(widest) + 1]
    if not forced:
        yield "instruction set", f"{widest} (the widest that this processor and build have)"
    elif forced in known:
        yield "instruction set", f"{forced} (LSP_CPU_ISA; the widest would be {widest})"
    else:
        yield "instruction set", f"Invalid LSP_CPU_ISA: expected {' or '.join(known)}, got {forced}; every call raises"


def accelerators() -> Report:
    """The GPUs that torch can use."""
    import torch

    if torch.backends.mps.is_available():
        yield "Apple GPU", f"mps; served by {mps_backend()}"
    elif not torch.cuda.is_available():
        yield "GPU", "none that torch can use"
    if not torch.cuda.is_available():
        return
    from . import _ops
    from .triton.configs.device import query

    for i in range(torch.cuda.device_count()):
        device = torch.device("cuda", i)
        reason = _ops.triton_reason(device)
        served = f"; served by the reference: {reason}" if reason else ""
        yield f"GPU {i}", f"{torch.cuda.get_device_name(i)} ({query(device).architecture}){served}"


def backends() -> Report:
    """Which backend serves each operation on which device, and why."""
    import torch

    from . import _ops
    from ._namespace import NAMESPACE

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in _ops.SCHEMAS:
        cpu = "C++ (the extension loads)" if has(f"{NAMESPACE}::{name}", "CPU") else f"reference ({_ops.cpp_reason})"
        gpu = (
            f"Triton ({triton_note()})"
            if has(f"{NAMESPACE}::{name}", "CUDA")
            else f"reference ({_ops.triton_reason() or 'it has no Triton kernel'})"
        )
        yield name, f"CPU: {cpu}; GPU: {gpu}; mps: {mps_backend(name)}; other devices: reference"
    if reason := _ops.triton_reason():
        yield "Triton", f"{reason}. {_ops.REPAIRS['cuda']}"


def mps_backend(*names: str) -> str:
    """What serves tensors on Apple's GPUs, in these operations or in all: the reference, or what others registered."""
    import torch

    from . import _ops
    from ._namespace import NAMESPACE

    operations = names or tuple(_ops.SCHEMAS)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    others = [name for name in operations if has(f"{NAMESPACE}::{name}", "MPS")]
    if not others:
        return "reference"
    return "a registered kernel" if names else f"reference, but {', '.join(others)} by a registered kernel"


def triton_note() -> str:
    """That Triton is installed, and whether it is another one than the kernels are tested with."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # it has other names for some GPUs
        return "it is installed"
    tested = version.split(".")[:2] == TESTED_TRITON.split(".")
    return "it is installed" if tested else f"{version} is installed; the kernels are tested with {TESTED_TRITON}"


def targets() -> None:
    """Prints the compiled facts of one build of each kernel for every architecture."""
    try:
        from .triton.aot.report import print_targets
    except ImportError as error:
        print(f"compiling for other GPUs needs Triton: pip install 'lsp-kernels[triton]' ({error})")
    else:
        print_targets()


def report(more: Mapping[str, Callable[[], Report]]) -> None:
    """Prints the report, followed by the sections in `more`."""
    sections: dict[str, Callable[[], Report]] = {
        "Versions": versions,
        "Processor": processor,
        "Accelerators": accelerators,
        "Operations": backends,
        **more,
    }
    for title, section in sections.items():
        print(title)
        try:
            rows = list(section())
            width = max([16, *(len(name) for name, _ in rows)])
            for name, value in rows:
                print(f"  {name:<{width}} {value}")
        except Exception as error:  # the report must work where the installation does not
            print(f"  {'unavailable':<16} {type(error).__name__}: {error}")
    sys.stdout.flush()


def main() -> None:
    targets() if "--targets" in sys.argv[1:] else report({})


if __name__ == "__main__":
    main()
