"""Compiling a kernel for a GPU that need not be present, down to machine code or to TTIR only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .facts import Compiled
from .targets import Target, target


@dataclass(frozen=True)
class Options:
    """Launch options of a kernel, and what the JIT would find out about its arguments.

    Attributes
    ----------
    num_warps, num_stages
        As in a launch.
    maxnreg
        Upper bound on registers. NVIDIA only; ignored elsewhere.
    aligned
        Arguments that are divisible by 16 (pointers in bytes, integers by value).
    within_2gb
        Pointers to less than 2 GiB, for which AMD has buffer loads.
    """

    num_warps: int
    num_stages: int = 1
    maxnreg: int | None = None
    aligned: Iterable[str] = ()
    within_2gb: Iterable[str] = ()


def compile_kernel(
    fn: Any, target_name: str, signature: Mapping[str, str], constexprs: Mapping[str, Any], **options: Any
) -> Compiled:
    """Compile a Triton kernel to machine code for a target that need not be present.

    Parameters
    ----------
    fn
        A ``@triton.jit`` function.
    target_name
        A key of `TARGETS`.
    signature
        Type of each run-time argument, as in ``{"x_ptr": "*bf16", "n": "i32", "floor": "fp32"}``.
    constexprs
        Value of each compile-time argument. Together with `signature` it must name every argument.
    options
        The fields of `Options`.

    `builds` calls it for every kernel of this package.
    """
    given = Options(**options)
    chosen, source, launch = _prepare(fn, target_name, signature, constexprs, given)
    kernel = _triton().compile(source, target=_gpu_target(chosen), options=launch)
    text, binary = ("ptx", "cubin") if chosen.backend == "cuda" else ("amdgcn", "hsaco")
    return Compiled(
        name=fn.__name__,
        target=chosen,
        num_warps=given.num_warps,
        shared=int(kernel.metadata.shared),
        ttir=str(kernel.asm["ttir"]),
        text=kernel.asm[text],
        binary=kernel.asm[binary],
    )


def lower_kernel(
    fn: Any, target_name: str, signature: Mapping[str, str], constexprs: Mapping[str, Any], **options: Any
) -> str:
    """The TTIR of a kernel. Takes the arguments of `compile_kernel` and is much faster."""
    chosen, source, launch = _prepare(fn, target_name, signature, constexprs, Options(**options))
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    gpu = _gpu_target(chosen)
    backend = make_backend(gpu)
    parsed = backend.parse_options(dict(launch, **source.parse_options()))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    module = source.make_ir(
        gpu,
        parsed,
        backend.get_codegen_implementation(parsed),
        backend.get_module_map(),
        context,
    )
    return str(stages["ttir"](module, dict(parsed.__dict__)))


def fingerprint(ttirs: Iterable[str]) -> str:
    """A hash of TTIR texts and the Triton version, without source locations.

    Moving a kernel or changing a comment keeps the fingerprint. A change of what is computed, another Triton or another
    order of the texts gives a new one.
    """
    digest = hashlib.sha256(f"triton {_triton().__version__}\n".encode())
    for ttir in ttirs:
        digest.update(_without_locations(ttir).encode())
    return digest.hexdigest()[:16]


def _without_locations(ttir: str) -> str:
    """The text without ``#loc`` definitions and ``loc(...)``, which may hold parentheses and strings."""
    text = re.sub(r"^#loc.*\n?", "", ttir, flags=re.M)
    kept, at = [], 0
    for start in re.finditer(r"\s*\bloc\(", text):
        if start.start() < at:
            continue
        kept.append(text[at : start.start()])
        at, depth = start.end(), 1
        for token in re.compile(r'"(?:\\.|[^"\\])*"|[()]').finditer(text, start.end()):
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if depth == 0:
                at = token.end()
                break
    return "".join([*kept, text[at:]])


def _prepare(
    fn: Any, target_name: str, signature: Mapping[str, str], constexprs: Mapping[str, Any], options: Options
) -> tuple[Target, Any, dict[str, Any]]:
    """The target, the compiler's source object and its options, after checking the arguments."""
    chosen = target(target_name)
    _triton()
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    if not isinstance(fn, JITFunction):
        raise TypeError(
            f"Invalid fn: expected a @triton.jit function, got {type(fn).__name__}"
            " (with TRITON_INTERPRET=1 nothing can be compiled)"
        )
    _check_names(fn, signature, constexprs, (*options.aligned, *options.within_2gb))
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for name in options.aligned:
        attributes.setdefault((fn.arg_names.index(name),), []).append(["tt.divisibility", 16])
    if chosen.backend == "hip":
        for name in options.within_2gb:
            attributes.setdefault((fn.arg_names.index(name),), []).append(["tt.pointer_range", 32])
    types = {name: signature.get(name, "constexpr") for name in fn.arg_names}
    source = ASTSource(fn, types, dict(constexprs), attributes)
    launch: dict[str, Any] = {"num_warps": options.num_warps, "num_stages": options.num_stages}
    if chosen.backend == "cuda" and options.maxnreg is not None:
        launch["maxnreg"] = options.maxnreg
    return chosen, source, launch


def _check_names(fn: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any], marked: Iterable[str]) -> None:
    names = list(fn.arg_names)
    given = [*signature, *constexprs]
    if missing := [name for name in names if name not in given]:
        raise ValueError(f"Invalid arguments of {fn.__name__}: expected also {', '.join(missing)}, got {given}")
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"Invalid arguments of {fn.__name__}: expected {names}, got also {', '.join(unknown)}")
    if wrong := [name for name in marked if name not in signature]:
        raise ValueError(f"Invalid options of {fn.__name__}: expected run-time arguments, got {', '.join(wrong)}")


def _gpu_target(chosen: Target) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(chosen.backend, chosen.arch, chosen.warp_size)


def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise ImportError("compiling kernels needs Triton: pip install 'lsp-kernels[triton]'") from error
    return triton
