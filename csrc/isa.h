// Which instruction set serves a call: the widest that the processor has, or the one that LSP_CPU_ISA names.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdlib>
#include <string_view>

// The namespace of the operators, which is also that of this code. setup.py takes it from lsp_kernels/_namespace.py.
#ifndef LSP_NAMESPACE
#error "build with -DLSP_NAMESPACE=<the NAMESPACE of lsp_kernels/_namespace.py>"
#endif

// The x86 paths need GCC's or clang's per-function targets; other compilers and processors get the portable path.
#if defined(__x86_64__) && defined(__GNUC__)
#define LSP_X86 1
#else
#define LSP_X86 0
#endif

namespace LSP_NAMESPACE {

enum class Isa { scalar, avx2, avx512, avx512bf16 };  // avx512bf16: AVX-512 with products of bfloat16 pairs

constexpr Isa WIDEST_FIRST[] = {Isa::avx512bf16, Isa::avx512, Isa::avx2, Isa::scalar};

inline const char* name_of(Isa isa) {
  constexpr const char* names[] = {"scalar", "avx2", "avx512", "avx512bf16"};
  return names[int(isa)];
}

inline bool supported(Isa isa) {
#if LSP_X86
  if (isa == Isa::avx512bf16) return supported(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
  if (isa == Isa::avx512) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  // Every processor with AVX2 also has F16C, for which some compilers have no test.
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == Isa::scalar;
}

// LSP_CPU_ISA is read at every call (about 50 ns), so that one process can compare the paths.
inline Isa current_isa() {
  const char* forced = std::getenv("LSP_CPU_ISA");
  for (Isa isa : WIDEST_FIRST) {
    if (forced && *forced ? std::string_view(forced) == name_of(isa) : supported(isa)) {
      STD_TORCH_CHECK(supported(isa), "Invalid LSP_CPU_ISA: expected what this processor and build have, got ", forced);
      return isa;
    }
  }
  STD_TORCH_CHECK(false, "Invalid LSP_CPU_ISA: expected avx512bf16, avx512, avx2 or scalar, got ", forced);
}

}  // namespace LSP_NAMESPACE
