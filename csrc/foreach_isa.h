// Compiles the file that LSP_ISA_SOURCE names once per instruction set, each time in a namespace of that name, after the
// vector operations of simd.h; with LSP_ISA_WITH_PAIRS also for AVX-512 with products of bfloat16 pairs. No include guard
// on purpose: every operation's .cpp includes it for its own source.
#include "isa.h"

#if LSP_X86
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__clang__)
#define LSP_PRAGMA(text) _Pragma(#text)
#define LSP_TARGET(isa) LSP_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define LSP_TARGET_END _Pragma("clang attribute pop")
#else
#define LSP_PRAGMA(text) _Pragma(#text)
#define LSP_TARGET(isa) _Pragma("GCC push_options") LSP_PRAGMA(GCC target(isa))
#define LSP_TARGET_END _Pragma("GCC pop_options")
#endif

namespace lsp::scalar {
#define LSP_ISA_BITS 0
#define LSP_ISA_PAIRS 0
#include "simd.h"
#include LSP_ISA_SOURCE
#undef LSP_ISA_BITS
}  // namespace lsp::scalar

#if LSP_X86
LSP_TARGET("avx2,fma,f16c")
namespace lsp::avx2 {
#define LSP_ISA_BITS 256
#include "simd.h"
#include LSP_ISA_SOURCE
#undef LSP_ISA_BITS
}  // namespace lsp::avx2
LSP_TARGET_END

LSP_TARGET("avx512f,avx512bw,fma,f16c")
namespace lsp::avx512 {
#define LSP_ISA_BITS 512
#include "simd.h"
#include LSP_ISA_SOURCE
#undef LSP_ISA_BITS
}  // namespace lsp::avx512
LSP_TARGET_END

#ifdef LSP_ISA_WITH_PAIRS
#undef LSP_ISA_PAIRS
#define LSP_ISA_PAIRS 1
LSP_TARGET("avx512f,avx512bw,avx512bf16,fma,f16c")
namespace lsp::avx512bf16 {
#define LSP_ISA_BITS 512
#include "simd.h"
#include LSP_ISA_SOURCE
#undef LSP_ISA_BITS
}  // namespace lsp::avx512bf16
LSP_TARGET_END
#endif
#endif

#undef LSP_ISA_PAIRS
