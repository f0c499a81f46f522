// The part of torch's stable C interface that the kernels use. It is declared here, so that they compile in seconds where
// there is no torch, and one library serves every torch from 2.10 on. tests/install/test_torch_abi.py compares each
// declaration with torch's own headers. The symbols are found when the library is loaded, which is after torch is.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr uint64_t TORCH_ABI = (uint64_t(2) << 56) | (uint64_t(10) << 48);  // the version of torch whose conventions are used
constexpr int32_t TORCH_OK = 0;                                               // any other error code is a failure

struct AtenTensorOpaque;
class TorchLibraryOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
using TorchLibraryHandle = TorchLibraryOpaque*;
using AOTITorchError = int32_t;
using StableIValue = uint64_t;  // an argument or a result of an operator; operators.h says how it holds them
using ParallelFunc = void (*)(int64_t begin, int64_t end, void* context);

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
extern "C" {

int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_bool();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_int8();
int32_t aoti_torch_dtype_uint8();
size_t aoti_torch_dtype_element_size(int32_t dtype);

AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* dim);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* dtype);
AOTITorchError aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* numel);
AOTITorchError aoti_torch_get_size(AtenTensorHandle tensor, int64_t d, int64_t* size);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes);  // borrowed
AOTITorchError aoti_torch_get_stride(AtenTensorHandle tensor, int64_t d, int64_t* stride);
AOTITorchError aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* is_contiguous);
AOTITorchError torch_get_const_data_ptr(AtenTensorHandle tensor, const void** data);  // borrowed
AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** data);      // borrowed

AOTITorchError aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle source, int32_t non_blocking);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_empty_strided(int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* tensor);  // owned

AOTITorchError torch_get_num_threads(uint32_t* threads);
AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t grain_size, ParallelFunc f, void* context);

AOTITorchError aoti_torch_library_init_impl(const char* operators, const char* dispatch_key, const char* file, uint32_t line,
                                            TorchLibraryHandle* library);  // owned
AOTITorchError torch_library_impl(TorchLibraryHandle library, const char* name,
                                  void (*f)(StableIValue* stack, uint64_t inputs, uint64_t outputs), uint64_t torch_abi);

}  // extern "C"
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
