"""The noise of the first and the last integers is right, where a float32 uniform would have no digits left.

No operation gives these integers, so the header that all C++ operations use is compiled by itself.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lsp_kernels
from lsp_kernels._namespace import NAMESPACE
from lsp_kernels.reference import noise as definition
from tests.support import ROOT

BLOCKS = """
#include "noise_blocks.h"
struct Blocks {
  static void run(const uint32_t* x, float* out, int64_t n) {
    for (int64_t i = 0; i < n; i += 4 * LANES) {
      Ints words[4];
      Vec noise[4];
      for (int k = 0; k < 4; ++k) words[k] = load_int(x + i + k * LANES);
      gumbel(words, noise);
      for (int k = 0; k < 4; ++k) store(out + i + k * LANES, noise[k]);
    }
  }
};
"""
SOURCE = """
#include "types.h"

#define LSP_ISA_SOURCE "blocks.h"
#include "foreach_isa.h"
extern "C" void noise_of(const uint32_t* x, float* out, int64_t n) {
  LSP_NAMESPACE::on_current_isa([&](auto blocks) { decltype(blocks)::run(x, out, n); });
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("gumbel")
    Path(folder, "blocks.h").write_text(BLOCKS)
    Path(folder, "noise.cpp").write_text(SOURCE)
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", "-w", f"-DLSP_NAMESPACE={NAMESPACE}"]
    command = [compiler, *flags, f"-I{folder}", f"-I{ROOT / 'csrc'}", "noise.cpp", "-o", "noise.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "noise.so"))


def noise_of(library: ctypes.CDLL, integers: Tensor) -> Tensor:
    words, out = integers.to(torch.uint32), torch.empty(len(integers))
    library.noise_of(ctypes.c_void_p(words.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_int64(len(words)))
    return out


INTEGERS = {
    "first": torch.arange(2**16),
    "last": torch.arange(2**32 - 2**16, 2**32),
    "around the middle": torch.arange(2**31 - 2**15, 2**31 + 2**15),
    "random": torch.randint(2**32, (2**20,), generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("integers", INTEGERS.values(), ids=INTEGERS)
def test_noise_is_that_of_float64(backend, library: ctypes.CDLL, integers: Tensor) -> None:
    if backend is lsp_kernels.reference:
        pytest.skip("it is the definition")
    exact = definition.gumbel(integers)
    assert (
        noise_of(library, integers).double() - exact
    ).abs().max() < 2.5e-6  # 2.1e-6 was seen: 1 unit in the last place of 22.2
    assert exact.abs().max() < 22.9  # what operations take for the largest noise
