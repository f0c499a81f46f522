"""``python -m lsp_kernels.info``: versions, and which backend serves each operation here and why. Never fails.

With ``--targets``: every kernel compiled for every architecture, as a table. Needs Triton, not a GPU.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator

Report = Iterator[tuple[str, str]]


def versions() -> Report:
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for package in ("lsp-kernels", "torch", "triton", "transformers", "numpy"):
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed"


def processor() -> Report:
    import torch

    from lsp_kernels import _ops

    yield "threads", str(torch.get_num_threads())
    forced = os.environ.get("LSP_CPU_ISA")
    if _ops.cpp is None:
        yield "C++ extension", str(_ops.cpp_reason)
        return
    yield "C++ extension", f"{_ops.cpp.__file__}, built by {_ops.cpp.compiler()}"
    yield (
        "instruction set",
        f"{forced} (LSP_CPU_ISA)" if forced else f"{_ops.cpp.best_isa()} (the widest here)",
    )


def accelerators() -> Report:
    import torch

    if not torch.cuda.is_available():
        yield "GPU", "none that torch can use"
        return
    for i in range(torch.cuda.device_count()):
        yield f"GPU {i}", torch.cuda.get_device_name(i)


def backends() -> Report:
    import torch

    from lsp_kernels import _ops

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in _ops.SCHEMAS:
        cpu = "C++" if has(f"lsp::{name}", "CPU") else f"reference ({_ops.cpp_reason})"
        gpu = "Triton" if has(f"lsp::{name}", "CUDA") else f"reference ({_ops.triton_reason()})"
        yield name, f"CPU: {cpu}; GPU: {gpu}; other devices: reference"


def main() -> None:
    if "--targets" in sys.argv[1:]:
        from lsp_kernels.triton.report import print_targets

        return print_targets()
    sections: dict[str, Callable[[], Report]] = {
        "Versions": versions,
        "Processor": processor,
        "Accelerators": accelerators,
        "Operations": backends,
    }
    for title, section in sections.items():
        print(title)
        try:
            for name, value in section():
                print(f"  {name:<16} {value}")
        except Exception as error:  # a report of what is broken must not break
            print(f"  {'unavailable':<16} {type(error).__name__}: {error}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
