"""What the launchers would make Triton compile, found by Triton's own JIT without launching anything.

Inside `captured`, every device is the GPU that is named, launches are only written down, and each is bound and
specialised by the code of Triton that a real launch runs. `of_build` says the same of a build that is proven.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from lsp_kernels.triton.aot import TARGETS, Options, compile
from lsp_kernels.triton.aot.builds import Build
from lsp_kernels.triton.configs import device
from tests.gpus import forget


@dataclass(frozen=True)
class Compilation:
    """What decides which machine code the compiler makes: two that are equal are one kernel."""

    kernel: str
    types: tuple[tuple[str, str], ...]  # of the run-time arguments
    constants: tuple[tuple[str, Any], ...]
    attributes: tuple[tuple[str, str], ...]  # what is known of the run-time arguments: divisibility, range
    options: str


@contextmanager
def as_gpu(architecture: str, processors: int = 132) -> Iterator[None]:
    """Every torch device is a GPU of this architecture."""
    forget()
    with mock.patch.object(device, "query", return_value=device.Device(architecture, processors)):
        yield
    forget()


@contextmanager
def captured(architecture: str) -> Iterator[list[Compilation]]:
    """The compilations that launches inside of the ``with`` would need on this GPU. Nothing is launched."""
    found: list[Compilation] = []

    def run(kernel: JITFunction, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        backend = _backend(architecture)
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialization, options = bind(*arguments, **keywords)
        options, types, constants, attributes = kernel._pack_args(backend, keywords, bound, specialization, options)
        found.append(_compilation(kernel, types, constants, attributes, options))

    with ExitStack() as stack:
        stack.enter_context(as_gpu(architecture))
        stack.enter_context(mock.patch.object(JITFunction, "run", run))
        yield found


def of_build(made: Build) -> Compilation:
    """The compilation of a build."""
    _, source, launch = compile._prepare(
        made.kernel, made.architecture, made.signature, made.constants, Options(**made._specialised())
    )
    options = _backend(made.architecture).parse_options(launch)
    return _compilation(made.kernel, source.signature, source.constants, source.attrs, options)


def _compilation(kernel: JITFunction, types: Any, constants: Any, attributes: Any, options: Any) -> Compilation:
    """The same form for both. Constants and attributes are keyed by the position of the argument."""

    def named(values: Any) -> dict[str, Any]:
        return {kernel.arg_names[path[0]]: value for path, value in values.items()}

    marks = {name: str(sorted(map(str, marked))) for name, marked in named(attributes).items() if marked}
    return Compilation(
        kernel.__name__,
        tuple(sorted((name, kind) for name, kind in types.items() if kind != "constexpr")),
        tuple(sorted(named(constants).items())),
        tuple(sorted(marks.items())),
        str(options),
    )


def _backend(architecture: str) -> Any:
    target = TARGETS[architecture]
    return make_backend(GPUTarget(target.backend, target.arch, target.warp_size))
