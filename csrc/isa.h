// Which instruction set serves a call: the best one the processor has, or the one that LSP_CPU_ISA names.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdlib>
#include <string_view>

// The x86 paths need GCC's or clang's per-function targets; every other compiler and processor gets the portable path.
#if defined(__x86_64__) && defined(__GNUC__)
#define LSP_X86 1
#else
#define LSP_X86 0
#endif

namespace lsp {

enum class Isa { scalar, avx2, avx512 };

inline const char* name_of(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "scalar";
}

inline bool supported(Isa isa) {
#if LSP_X86
  if (isa == Isa::avx512) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  // Every processor with AVX2 also has F16C, which some compilers cannot ask for.
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == Isa::scalar;
}

// Read at every call (about 50 ns), so that one process can compare the paths.
inline Isa current_isa() {
  const char* forced = std::getenv("LSP_CPU_ISA");
  for (Isa isa : {Isa::avx512, Isa::avx2, Isa::scalar}) {
    if (forced && *forced ? std::string_view(forced) == name_of(isa) : supported(isa)) {
      STD_TORCH_CHECK(supported(isa), "Invalid LSP_CPU_ISA: this processor or build has no ", name_of(isa));
      return isa;
    }
  }
  STD_TORCH_CHECK(false, "Invalid LSP_CPU_ISA: expected avx512, avx2 or scalar, got ", forced);
}

}  // namespace lsp
