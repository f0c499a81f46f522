// The Python module behind lsp_kernels._C. Importing it registers the operations; it says how it was built.
#include <Python.h>

#include "isa.h"

namespace {

PyObject* best_isa(PyObject*, PyObject*) {
  lsp::Isa best = lsp::Isa::scalar;
  for (lsp::Isa isa : lsp::WIDEST_FIRST)
    if (lsp::supported(isa) && isa > best) best = isa;
  return PyUnicode_FromString(lsp::name_of(best));
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
    {"flags", flags, METH_NOARGS, "The flags that it was built with."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "_C", "CPU kernels of lsp_kernels.", -1, methods,
                                 nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module_definition); }
