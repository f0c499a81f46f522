"""No operands of a raw operator crash the process or reach outside of their tensors.

LSP_FUZZ=100000 makes that many calls per instruction set instead of a few hundred.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

COUNT = int(os.environ.get("LSP_FUZZ", "400"))
SEED = int(os.environ.get("LSP_FUZZ_SEED", "0"))


def run(code: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *code]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "avx512bf16"])
def test_every_call_is_served_or_refused(isa: str) -> None:
    done = run(["-m", "tests.kernels.fuzz", str(SEED), str(COUNT)], LSP_CPU_ISA=isa)
    if "Invalid LSP_CPU_ISA" in done.stderr:
        pytest.skip(f"no {isa} on this machine")
    assert done.returncode == 0, f"signal or error {done.returncode}: " + "\n".join(done.stderr.splitlines()[-12:])
    served, refused = map(int, done.stdout.split())
    assert served + refused == COUNT
    assert min(served, refused) > COUNT // 4


OUTSIDE = """
import ctypes
from tests.kernels.fuzz import between_guards
memory = between_guards(100, at_end={at_end})
ctypes.string_at(ctypes.addressof(memory), 100)
print("inside", flush=True)
ctypes.string_at(ctypes.addressof(memory) + ({at_end} and 100 or -1), 1)
print("outside")
"""


@pytest.mark.parametrize("at_end", [True, False])
def test_a_byte_outside_of_the_guards_is_noticed(at_end: bool) -> None:
    done = run(["-c", OUTSIDE.format(at_end=at_end)])
    assert done.returncode == -11
    assert done.stdout.split() == ["inside"]
