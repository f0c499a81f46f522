"""The instruction set is what the processor has and the operating system supports."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from lsp_kernels import _ops
from tests.install.compiler import syntax_errors

FLAGS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw"},
    "avx512bf16": {"avx512_bf16"},
}
CASES = """
#include "isa.h"
using namespace lsp;

constexpr uint32_t ECX = 1u << 12 | 1u << 29, AVX2 = 1u << 5, AVX512 = AVX2 | 1u << 16 | 1u << 30, BF16 = 1u << 5;
constexpr bool is(Isa isa, uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint32_t leaf7_1_eax, uint64_t xcr0) {
  Processor processor;
  processor.leaf1_ecx = leaf1_ecx;
  processor.leaf7_ebx = leaf7_ebx;
  processor.leaf7_1_eax = leaf7_1_eax;
  processor.xcr0 = xcr0;
  return processor.widest() == isa;
}
static_assert(is(Isa::avx512bf16, ECX, AVX512, BF16, 0xe7));
static_assert(is(Isa::avx512, ECX, AVX512, 0, 0xe7));
static_assert(is(Isa::avx2, ECX, AVX2, 0, 0x07));
static_assert(is(Isa::scalar, 0, 0, 0, 0));
static_assert(is(Isa::avx2, ECX, AVX512, BF16, 0x07), "the system does not keep the registers of AVX-512");
static_assert(is(Isa::avx2, ECX, AVX512, BF16, 0x67), "nor all parts of them");
static_assert(is(Isa::scalar, ECX, AVX512, BF16, 0x03), "nor those of AVX");
static_assert(is(Isa::scalar, 1u << 12, AVX512, BF16, 0xe7), "F16C is missing");
static_assert(is(Isa::scalar, 1u << 29, AVX512, BF16, 0xe7), "FMA is missing");
static_assert(is(Isa::avx2, ECX, AVX512 & ~(1u << 30), BF16, 0xe7), "AVX512BW is missing");
"""


def test_an_instruction_set_needs_all_its_parts_and_the_system() -> None:
    assert syntax_errors(CASES) == ""


def test_this_processor_is_told_as_the_system_tells_it() -> None:
    if platform.system() != "Linux" or platform.machine() != "x86_64" or _ops.cpp is None:
        pytest.skip("needs Linux on x86_64 and the extension")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split(":")[1].split())
    expected = "scalar"
    for name, needed in FLAGS.items():
        if not needed <= flags:
            break
        expected = name
    assert _ops.cpp.best_isa() == expected
