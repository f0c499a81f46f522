// The Python module lsp_kernels._C. Importing it registers the CPU kernels; its functions tell how it was built.
#include <Python.h>

#include "isa.h"
#include "operators.h"

#include <exception>

#define LSP_STRING_OF(name) #name
#define LSP_STRING(name) LSP_STRING_OF(name)

namespace {

PyObject* best_isa(PyObject*, PyObject*) {
  LSP_NAMESPACE::Isa best = LSP_NAMESPACE::Isa::scalar;
  for (LSP_NAMESPACE::Isa isa : LSP_NAMESPACE::WIDEST_FIRST)
    if (LSP_NAMESPACE::supported(isa) && isa > best) best = isa;
  return PyUnicode_FromString(LSP_NAMESPACE::name_of(best));
}

PyObject* compiler(PyObject*, PyObject*) {
#if defined(__clang__)
  return PyUnicode_FromString("clang " __clang_version__);
#elif defined(__GNUC__)
  return PyUnicode_FromString("gcc " __VERSION__);
#else
  return PyUnicode_FromString("unknown compiler");
#endif
}

PyObject* flags(PyObject*, PyObject*) { return PyUnicode_FromString(LSP_BUILD_FLAGS); }

PyMethodDef methods[] = {
    {"best_isa", best_isa, METH_NOARGS, "The widest instruction set that this processor and this build have."},
    {"compiler", compiler, METH_NOARGS, "The compiler that built this module."},
    {"flags", flags, METH_NOARGS, "The flags with which it was built."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "_C", "CPU kernels of lsp_kernels.", -1, methods,
                                 nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  try {
    LSP_NAMESPACE::CpuKernels kernels(LSP_STRING(LSP_NAMESPACE));
    LSP_NAMESPACE::add_commit(kernels);
    LSP_NAMESPACE::add_attention(kernels);
    LSP_NAMESPACE::add_head(kernels);
    LSP_NAMESPACE::add_block(kernels);
    LSP_NAMESPACE::add_product(kernels);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
  return PyModule_Create(&module_definition);
}
