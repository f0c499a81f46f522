// Which instruction set serves a call: the widest that the processor has, or the one that LSP_CPU_ISA names.
#pragma once

#include "errors.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

// The x86 paths need GCC's or clang's per-function targets; other compilers and processors get the portable path.
#if defined(__x86_64__) && defined(__GNUC__)
#define LSP_X86 1
#include <cpuid.h>
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

// What an x86 processor says of itself, and in XCR0 which registers the operating system keeps for a thread.
struct Processor {
  uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_1_eax = 0;
  uint64_t xcr0 = 0;

  constexpr Isa widest() const {
    constexpr uint32_t FMA = 1u << 12, F16C = 1u << 29;                         // leaf 1, ECX
    constexpr uint32_t AVX2 = 1u << 5, AVX512F = 1u << 16, AVX512BW = 1u << 30;  // leaf 7, EBX
    constexpr uint32_t AVX512_BF16 = 1u << 5;                                   // leaf 7.1, EAX
    constexpr uint64_t YMM = 0x06, ZMM = 0xe6;                                  // XCR0: all parts of these registers
    if (!has(leaf1_ecx, FMA | F16C) || !has(leaf7_ebx, AVX2) || !has(xcr0, YMM)) return Isa::scalar;
    if (!has(leaf7_ebx, AVX512F | AVX512BW) || !has(xcr0, ZMM)) return Isa::avx2;
    return has(leaf7_1_eax, AVX512_BF16) ? Isa::avx512bf16 : Isa::avx512;
  }

 private:
  static constexpr bool has(uint64_t value, uint64_t bits) { return (value & bits) == bits; }
};

// Asks by cpuid and xgetbv rather than by __builtin_cpu_supports, which needs a symbol that not every linker provides.
inline Processor this_processor() {
  Processor out;
#if LSP_X86
  constexpr uint32_t OSXSAVE = 1u << 27;  // leaf 1, ECX: xgetbv may be used
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & OSXSAVE)) return out;
  out.leaf1_ecx = ecx;
  __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  out.xcr0 = uint64_t(edx) << 32 | eax;
  if (!__get_cpuid_count(7, 0, &eax, &out.leaf7_ebx, &ecx, &edx) || eax < 1) return out;
  __get_cpuid_count(7, 1, &out.leaf7_1_eax, &ebx, &ecx, &edx);
#endif
  return out;
}

inline bool supported(Isa isa) {
  static const Isa widest = this_processor().widest();  // once: cpuid takes a microsecond and more in a virtual machine
  return isa <= widest;
}

// LSP_CPU_ISA is read at every call (about 50 ns), so that one process can compare the paths.
inline Isa current_isa() {
  const char* forced = std::getenv("LSP_CPU_ISA");
  for (Isa isa : WIDEST_FIRST) {
    if (forced && *forced ? std::string_view(forced) == name_of(isa) : supported(isa)) {
      if (!supported(isa))
        fail(std::string("Invalid LSP_CPU_ISA: expected what this processor and build have, got ") + forced);
      return isa;
    }
  }
  fail(std::string("Invalid LSP_CPU_ISA: expected avx512bf16, avx512, avx2 or scalar, got ") + forced);
}

}  // namespace LSP_NAMESPACE
