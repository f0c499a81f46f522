"""Compile Triton kernels for named GPUs on a machine that has none, and read the result.

`compile_kernel` lowers a ``@triton.jit`` function to machine code for one of `TARGETS` and returns
a `Compiled` with the assembly text, registers, spills, shared memory, the widest global load and
an occupancy estimate. `lower_kernel` stops at TTIR, which `fingerprint` hashes so that a stored
table of compiled facts can tell that it is stale.

Nothing here launches a kernel or asks for a GPU, and Triton is imported on first use only. It does
not judge either: which spills or widths are acceptable is for the caller to say.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = [
    "TARGETS",
    "Compiled",
    "Resources",
    "Target",
    "compile_kernel",
    "fingerprint",
    "lower_kernel",
    "occupancy",
    "target",
]

KIB = 1024
SIMDS = 4  # register files of an SM, a CU (gfx9) or a WGP (gfx11, gfx12)


@dataclass(frozen=True)
class Target:
    """A GPU architecture and the limits that decide how many warps fit on one of its processors.

    Registers are counted per lane of one of the processor's four register files.
    """

    name: str
    backend: str  # "cuda" or "hip"
    warp_size: int
    shared_limit: int  # bytes that one program may use
    shared_total: int  # bytes that the programs of one processor share
    shared_reserved: int  # bytes that the system takes from each program
    registers: int  # per lane of one register file
    register_step: int  # allocation granularity
    max_warps: int  # per register file
    max_blocks: int  # per processor

    @property
    def arch(self) -> int | str:
        """The architecture as Triton's backends spell it: 90 or "gfx942"."""
        return int(self.name.removeprefix("sm_")) if self.backend == "cuda" else self.name


def _nvidia(name: str, shared_kib: int, max_warps: int, max_blocks: int) -> Target:
    total = shared_kib * KIB
    return Target(name, "cuda", 32, total - KIB, total, KIB, 512, 8, max_warps, max_blocks)


def _cdna(name: str, shared_kib: int) -> Target:
    total = shared_kib * KIB
    return Target(name, "hip", 64, total, total, 0, 512, 8, 8, 32)


def _rdna(name: str) -> Target:
    return Target(name, "hip", 32, 64 * KIB, 128 * KIB, 0, 1536, 24, 16, 32)


TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        _nvidia("sm_80", 164, 16, 32),
        _nvidia("sm_86", 100, 12, 16),
        _nvidia("sm_89", 100, 12, 24),
        _nvidia("sm_90", 228, 16, 32),
        _nvidia("sm_100", 228, 16, 32),
        _nvidia("sm_120", 100, 12, 24),
        _cdna("gfx942", 64),
        _cdna("gfx950", 160),
        _rdna("gfx1100"),
        _rdna("gfx1201"),
    )
}


@dataclass(frozen=True)
class Resources:
    """What one thread of a compiled kernel occupies.

    Attributes
    ----------
    registers
        32-bit registers (VGPRs, accumulation registers included, on AMD).
    stack
        Bytes of thread-local memory: STACK of cuobjdump, scratch on AMD.
    vector_spills, scalar_spills
        Spilled registers as the AMD assembler counts them; 0 on NVIDIA, where STACK shows them. Scalar ones go to lanes
        of vector registers, not to memory.
    """

    registers: int
    stack: int
    vector_spills: int = 0
    scalar_spills: int = 0

    @property
    def spills(self) -> int:
        """Zero exactly when nothing was spilled to memory."""
        return self.stack + self.vector_spills


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one target. `text` is the PTX or the amdgcn assembly."""

    name: str
    target: Target
    num_warps: int
    shared: int  # bytes per program
    ttir: str = field(repr=False)
    text: str = field(repr=False)
    binary: bytes = field(repr=False)

    @cached_property
    def resources(self) -> Resources:
        """Registers and spills; runs cuobjdump on first use for NVIDIA."""
        if self.target.backend == "hip":
            return _amd_resources(self.text)
        return _nvidia_resources(self.binary)

    @property
    def registers(self) -> int:
        return self.resources.registers

    @property
    def spills(self) -> int:
        return self.resources.spills

    @property
    def occupancy(self) -> float:
        """Resident warps as a fraction of the processor's maximum (an estimate)."""
        return occupancy(self.target, self.registers, self.shared, self.num_warps)

    @cached_property
    def opcodes(self) -> tuple[str, ...]:
        """The opcode of each instruction in program order, modifiers included."""
        return tuple(_OPCODE.findall(_COMMENT.sub("", self.text)))

    def count(self, *prefixes: str) -> int:
        """How many instructions have an opcode that starts with one of `prefixes`."""
        return sum(opcode.startswith(prefixes) for opcode in self.opcodes)

    @property
    def widest_load(self) -> int:
        """Bits moved per thread by the widest load from global memory, 0 without one."""
        return max((_load_bits(line) for line in self.text.splitlines()), default=0)


_COMMENT = re.compile(r"//[^\n]*|;[^\n]*(?=\n)|/\*.*?\*/", re.S)
_OPCODE = re.compile(r"^[ \t]+(?:@!?%\w+[ \t]+)?([a-z]\w*(?:[.:]+\w+)*)(?=[ \t]|;?$)", re.M)
_PTX_LOAD = re.compile(r"\bld(?:\.relaxed|\.volatile)?\.global\S*?(?:\.v(\d))?\.[busf](\d+)\s")
_PTX_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\S*\s.*,\s*(0x[0-9a-f]+|\d+)(?:,|;)")
_AMD_LOAD = re.compile(r"\b(?:global|buffer)_load_(\w+)")
_AMD_WIDTHS = (
    (r"dwordx(\d)", 32),
    (r"dword", 32),
    (r"byte", 8),
    (r"short", 16),
    (r"[bui](\d+)$", 1),
)


def _load_bits(line: str) -> int:
    if found := _PTX_LOAD.search(line):
        return int(found[1] or 1) * int(found[2])
    if found := _PTX_COPY.search(line):
        return 8 * int(found[1], 0)
    if found := _AMD_LOAD.search(line):
        for pattern, unit in _AMD_WIDTHS:
            if width := re.search(pattern, found[1]):
                return unit * int(width[1] if width.groups() else 1)
    return 0


def _amd_resources(text: str) -> Resources:
    def read(key: str) -> int:
        found = re.search(rf"^\s*-?\s*\.{key}:\s*(\d+)", text, re.M)
        if found is None:
            raise ValueError(f"no .{key} in the amdgcn metadata")
        return int(found[1])

    return Resources(
        registers=read("vgpr_count"),
        stack=read("private_segment_fixed_size"),
        vector_spills=read("vgpr_spill_count"),
        scalar_spills=read("sgpr_spill_count"),
    )


def _nvidia_resources(cubin: bytes) -> Resources:
    import triton

    tool = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    if found is None:
        raise ValueError(f"unexpected output of cuobjdump:\n{report}")
    return Resources(registers=int(found[1]), stack=int(found[2]))


def occupancy(target: Target, registers: int, shared: int, num_warps: int) -> float:
    """Estimate the fraction of a processor's warp slots that such programs fill.

    Counts registers, shared memory, warp and block slots, not the order in which warps are dealt to
    the register files. 0.0 means that not even one program fits.

    Examples
    --------
    >>> occupancy(TARGETS["sm_90"], registers=64, shared=0, num_warps=8)
    0.5
    """
    step = target.register_step
    allocated = max(-(-registers // step) * step, step)
    slots = SIMDS * min(target.max_warps, target.registers // allocated)
    blocks = min(slots // num_warps, target.max_blocks)
    if shared > target.shared_limit:
        return 0.0
    if shared:
        blocks = min(blocks, target.shared_total // (shared + target.shared_reserved))
    return blocks * num_warps / (SIMDS * target.max_warps)


def target(name: str) -> Target:
    """Look up a target by name; an unknown name raises a ValueError that lists the known ones."""
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"unknown target {name!r}, expected one of {', '.join(TARGETS)}") from None


def compile_kernel(
    fn: Any,
    target_name: str,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    *,
    num_warps: int,
    num_stages: int = 1,
    maxnreg: int | None = None,
    aligned: Iterable[str] = (),
    within_2gb: Iterable[str] = (),
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
    num_warps, num_stages, maxnreg
        Launch options. `maxnreg` concerns NVIDIA only and is ignored elsewhere.
    aligned
        Arguments that the JIT would find divisible by 16 (pointers in bytes, integers by value).
    within_2gb
        Pointers whose storage the JIT would find smaller than 2 GiB; AMD then uses buffer loads.

    Examples
    --------
    >>> compiled = compile_kernel(copy, "sm_90", {"src": "*fp32", "dst": "*fp32", "n": "i32"},
    ...                           {"BLOCK": 1024}, num_warps=4, aligned=("src", "dst", "n"))
    >>> compiled.widest_load, compiled.spills
    (128, 0)
    """
    chosen, source, launch = _prepare(
        fn,
        target_name,
        signature,
        constexprs,
        num_warps=num_warps,
        num_stages=num_stages,
        maxnreg=maxnreg,
        aligned=aligned,
        within_2gb=within_2gb,
    )
    kernel = _triton().compile(source, target=_gpu_target(chosen), options=launch)
    text, binary = ("ptx", "cubin") if chosen.backend == "cuda" else ("amdgcn", "hsaco")
    return Compiled(
        name=fn.__name__,
        target=chosen,
        num_warps=num_warps,
        shared=int(kernel.metadata.shared),
        ttir=str(kernel.asm["ttir"]),
        text=kernel.asm[text],
        binary=kernel.asm[binary],
    )


def lower_kernel(
    fn: Any,
    target_name: str,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    **options: Any,
) -> str:
    """The TTIR of a kernel, much faster to get than `compile_kernel` and with its arguments."""
    chosen, source, launch = _prepare(fn, target_name, signature, constexprs, **options)
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
    """Hash TTIR texts together with the Triton version; source locations do not count.

    Moving a kernel within its file or reformatting a comment keeps the fingerprint; any change of
    what is computed, a new Triton, or another order of the texts gives a new one.
    """
    digest = hashlib.sha256(f"triton {_triton().__version__}\n".encode())
    for ttir in ttirs:
        digest.update(_without_locations(ttir).encode())
    return digest.hexdigest()[:16]


def _without_locations(ttir: str) -> str:
    """Drop ``#loc`` definitions and every ``loc(...)``, whose parentheses and strings may nest."""
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
    fn: Any,
    target_name: str,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    *,
    num_warps: int,
    num_stages: int = 1,
    maxnreg: int | None = None,
    aligned: Iterable[str] = (),
    within_2gb: Iterable[str] = (),
) -> tuple[Target, Any, dict[str, Any]]:
    """Check the arguments and build the compiler's source and option objects."""
    chosen = target(target_name)
    _triton()
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    if not isinstance(fn, JITFunction):
        raise TypeError(
            f"expected a @triton.jit function, got {type(fn).__name__}"
            " (with TRITON_INTERPRET=1 nothing can be compiled)"
        )
    _check_names(fn, signature, constexprs, (*aligned, *within_2gb))
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for name in aligned:
        attributes.setdefault((fn.arg_names.index(name),), []).append(["tt.divisibility", 16])
    if chosen.backend == "hip":
        for name in within_2gb:
            attributes.setdefault((fn.arg_names.index(name),), []).append(["tt.pointer_range", 32])
    types = {name: signature.get(name, "constexpr") for name in fn.arg_names}
    source = ASTSource(fn, types, dict(constexprs), attributes)
    launch: dict[str, Any] = {"num_warps": num_warps, "num_stages": num_stages}
    if chosen.backend == "cuda" and maxnreg is not None:
        launch["maxnreg"] = maxnreg
    return chosen, source, launch


def _check_names(fn: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any], marked: Iterable[str]) -> None:
    names = list(fn.arg_names)
    given = [*signature, *constexprs]
    if missing := [name for name in names if name not in given]:
        raise ValueError(f"{fn.__name__}: no type or value for {', '.join(missing)}")
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"{fn.__name__} has no argument {', '.join(unknown)}")
    if wrong := [name for name in marked if name not in signature]:
        raise ValueError(f"{fn.__name__}: not a run-time argument: {', '.join(wrong)}")


def _gpu_target(chosen: Target) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(chosen.backend, chosen.arch, chosen.warp_size)


def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise ImportError("compiling kernels needs Triton: pip install triton numpy") from error
    return triton
