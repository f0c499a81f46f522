// Compiles the file that LSP_ISA_SOURCE names once per instruction set, each time in a namespace of the set's name and
// after the vector operations of simd.h. With LSP_ISA_WITH_PAIRS it is also compiled for AVX-512 with products of bfloat16
// pairs. The file defines a struct Blocks; on_current_isa chooses one. There is no include guard, because every .cpp of
// an operation includes this once with its own file.
#include "isa.h"

#if LSP_X86
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__clang__)
#define LSP_PRAGMA(text) _Pragma(#text)
#define LSP_TARGET(isa) LSP_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define LSP_TARGET_END _Pragma("clang attribute pop")
#else
#define LSP_PRAGMA(text) _Pragma(#text)
#define LSP_TARGET(isa) _Pragma("GCC push_options") LSP_PRAGMA(GCC target(isa))
#define LSP_TARGET_END _Pragma("GCC pop_options")
#endif

namespace LSP_NAMESPACE::scalar {
#define LSP_ISA_BITS 0
#define LSP_ISA_PAIRS 0
#include "simd.h"
#include LSP_ISA_SOURCE
#undef LSP_ISA_BITS
}  // namespace LSP_NAMESPACE::scalar

#if LSP_X86
LSP_TARGET("avx2,fma,f16c")
namespace LSP_NAMESPACE::avx2 {
#define LSP_ISA_BITS 256
#include "simd.h"
#include LSP_ISA_SOURCE
#undef LSP_ISA_BITS
}  // namespace LSP_NAMESPACE::avx2
LSP_TARGET_END

LSP_TARGET("avx512f,avx512bw,fma,f16c")
namespace LSP_NAMESPACE::avx512 {
#define LSP_ISA_BITS 512
#include "simd.h"
#include LSP_ISA_SOURCE
#undef LSP_ISA_BITS
}  // namespace LSP_NAMESPACE::avx512
LSP_TARGET_END

#ifdef LSP_ISA_WITH_PAIRS
#undef LSP_ISA_PAIRS
#define LSP_ISA_PAIRS 1
LSP_TARGET("avx512f,avx512bw,avx512bf16,fma,f16c")
namespace LSP_NAMESPACE::avx512bf16 {
#define LSP_ISA_BITS 512
#include "simd.h"
#include LSP_ISA_SOURCE
#undef LSP_ISA_BITS
}  // namespace LSP_NAMESPACE::avx512bf16
LSP_TARGET_END
#endif
#endif

#undef LSP_ISA_PAIRS

namespace LSP_NAMESPACE {
namespace {

// Calls f with the Blocks of the instruction set that serves this call.
template <class F>
void on_current_isa(const F& f) {
  switch (current_isa()) {
#if LSP_X86
    case Isa::avx512bf16:
#ifdef LSP_ISA_WITH_PAIRS
      return f(avx512bf16::Blocks());
#endif
    case Isa::avx512: return f(avx512::Blocks());
    case Isa::avx2: return f(avx2::Blocks());
#endif
    default: return f(scalar::Blocks());
  }
}

}  // namespace
}  // namespace LSP_NAMESPACE
