// Registers C++ functions as the CPU kernels of operators that Python has defined.
//
// torch calls a kernel with a stack of 64-bit values: the arguments, which the results then replace. A number or a flag is
// held in the low bytes, a tensor as a handle that the receiver owns, and an optional value as a pointer to a value on the
// heap that the receiver owns, or null.
#pragma once

#include "errors.h"
#include "tensors.h"

#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the values on torch's stack are read as little-endian"
#endif

namespace LSP_NAMESPACE {

template <class T>
struct Boxed {  // numbers, flags and pointers
  static T take(StableIValue value) {
    T out;
    std::memcpy(&out, &value, sizeof out);
    return out;
  }
};

template <>
struct Boxed<Tensor> {
  static Tensor take(StableIValue value) { return Tensor(Boxed<AtenTensorHandle>::take(value)); }
  static StableIValue give(Tensor tensor) { return StableIValue(reinterpret_cast<uintptr_t>(tensor.release())); }
};

template <class T>
struct Boxed<std::optional<T>> {
  static std::optional<T> take(StableIValue value) {
    const std::unique_ptr<StableIValue> inner(Boxed<StableIValue*>::take(value));
    return inner ? std::optional<T>(Boxed<T>::take(*inner)) : std::nullopt;
  }
};

// The C++ function `f` as torch calls it.
template <auto f>
struct Kernel;

template <class... Outputs, class... Inputs, std::tuple<Outputs...> (*f)(Inputs...)>
struct Kernel<f> {
  static void call(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
    if (inputs != sizeof...(Inputs) || outputs != sizeof...(Outputs))
      fail("Invalid schema: expected " + std::to_string(sizeof...(Inputs)) + " arguments and " +
           std::to_string(sizeof...(Outputs)) + " results, got " + std::to_string(inputs) + " and " + std::to_string(outputs));
    give(stack, std::apply(f, take(stack, std::index_sequence_for<Inputs...>())), std::index_sequence_for<Outputs...>());
  }

 private:
  template <size_t... i>
  static std::tuple<Inputs...> take(StableIValue* stack, std::index_sequence<i...>) {
    return {Boxed<Inputs>::take(stack[i])...};
  }
  template <size_t... i>
  static void give(StableIValue* stack, std::tuple<Outputs...> outputs, std::index_sequence<i...>) {
    ((stack[i] = Boxed<Outputs>::give(std::move(std::get<i>(outputs)))), ...);
  }
};

class CpuKernels {
 public:
  explicit CpuKernels(const char* operators) {
    check(aoti_torch_library_init_impl(operators, "CPU", __FILE__, __LINE__, &library), "opening a library of operators");
  }
  template <auto f>
  void add(const char* name) {
    check(torch_library_impl(library, name, &Kernel<f>::call, TORCH_ABI), "registering a kernel");
  }

 private:
  TorchLibraryHandle library;  // never deleted: the kernels stay for as long as the process runs
};

// Each file of operations registers its own; the module calls these when it is imported.
void add_commit(CpuKernels& kernels);
void add_attention(CpuKernels& kernels);
void add_head(CpuKernels& kernels);
void add_block(CpuKernels& kernels);
void add_product(CpuKernels& kernels);

}  // namespace LSP_NAMESPACE
