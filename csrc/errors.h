// Errors. They become RuntimeErrors in Python.
#pragma once

#include "torch_abi.h"

#include <stdexcept>
#include <string>

// The namespace of the operators, which is also that of this code. setup.py takes it from lsp_kernels/_namespace.py.
#ifndef LSP_NAMESPACE
#error "build with -DLSP_NAMESPACE=<the NAMESPACE of lsp_kernels/_namespace.py>"
#endif

namespace LSP_NAMESPACE {

[[noreturn]] inline void fail(const std::string& message) { throw std::runtime_error(message); }

// Checks what a function of torch_abi.h returned.
inline void check(AOTITorchError code, const char* what) {
  if (code != TORCH_OK) fail(std::string(what) + " failed in torch");
}

}  // namespace LSP_NAMESPACE
