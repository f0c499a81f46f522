"""What a compiled kernel must be like, by architecture."""

from __future__ import annotations

from lsp_kernels.triton.aot import Compiled
from lsp_kernels.triton.builds import Build
from tests.triton.ordering import check_amdgcn, check_ptx


def violations(made: Build, compiled: Compiled) -> list[str]:
    """Every gate of the commit family that a build fails, as a sentence."""
    out = []
    if compiled.spills:
        out.append(f"spills: {compiled.resources}")
    if compiled.shared > compiled.target.shared_limit:
        out.append(f"{compiled.shared} bytes of shared memory, {compiled.target.shared_limit} allowed")
    if made.kernel.__name__ == "select_kernel":
        return out
    if "unaligned" not in made.name and compiled.widest_load < 128:
        out.append(f"the widest load has {compiled.widest_load} bits")
    if compiled.target.backend == "cuda":
        out += check_ptx(compiled.text)
    else:
        out += check_amdgcn(compiled.text, compiled.target.name)
    return out
