"""What is known of a compiled kernel: registers, spills, shared memory, opcodes, the widest load, occupancy."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .targets import Target, occupancy


@dataclass(frozen=True)
class Resources:
    """The registers and thread-local memory of one thread of a compiled kernel.

    Attributes
    ----------
    registers
        32-bit registers (VGPRs, accumulation registers included, on AMD).
    stack
        Bytes of thread-local memory: STACK of cuobjdump on NVIDIA, scratch on AMD.
    vector_spills, scalar_spills
        Spilled registers as the AMD assembler counts them; 0 on NVIDIA, where `stack` shows them. Scalar registers are
        spilled to lanes of vector registers, not to memory.
    """

    registers: int
    stack: int
    vector_spills: int = 0
    scalar_spills: int = 0

    @property
    def spills(self) -> int:
        """0 exactly if nothing is spilled to memory."""
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
        """Registers and spills. For NVIDIA the first use runs cuobjdump."""
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
        """An estimate of the resident warps, as a fraction of the processor's maximum."""
        return occupancy(self.target, self.registers, self.shared, self.num_warps)

    @cached_property
    def opcodes(self) -> tuple[str, ...]:
        """The opcode of each instruction, with modifiers, in program order."""
        return tuple(_OPCODE.findall(_COMMENT.sub("", self.text)))

    def count(self, *prefixes: str) -> int:
        """How many instructions have an opcode that starts with one of `prefixes`."""
        return sum(opcode.startswith(prefixes) for opcode in self.opcodes)

    @property
    def widest_load(self) -> int:
        """Bits per thread of the widest load from global memory; 0 without such a load."""
        return max((load_bits(line) for line in self.text.splitlines()), default=0)


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


def load_bits(line: str) -> int:
    """Bits per thread that a line of PTX or amdgcn assembly loads from global memory; 0 if it is no such load."""
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
            raise ValueError(f"Invalid amdgcn metadata: expected .{key}, got none")
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
        raise ValueError(f"Invalid output of cuobjdump: expected REG and STACK, got\n{report}")
    return Resources(registers=int(found[1]), stack=int(found[2]))
