"""Builds the optional C++ extension. If that fails, the install still succeeds and the PyTorch reference serves.

``LSP_PACKAGE=name`` builds it for a copy of ``lsp_kernels`` in a folder of that name instead. The operators are
registered under the namespace of the copy, so that both can be loaded in one process.
"""

import os
import runpy
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = os.environ.get("LSP_PACKAGE", "lsp_kernels")
NAMESPACE = runpy.run_path(os.path.join(PACKAGE, "_namespace.py"))["NAMESPACE"]  # without importing the package
TORCH_FLOOR = "0x020a000000000000"  # torch 2.10, whose stable ABI lets one library serve every later torch
GNU_FLAGS = ["-O3", "-std=c++17", "-fvisibility=hidden", "-g0"]
QUIET = [
    "-Wno-unknown-warning-option",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]  # in gcc's own AVX-512 headers
FLAGS = ["/O2", "/std:c++17"] if sys.platform == "win32" else [*GNU_FLAGS, *QUIET]


def extensions() -> list[Extension]:
    try:
        from torch.utils.cpp_extension import include_paths, library_paths
    except ImportError as error:
        warn(f"torch is not importable ({error}); install torch first and use --no-build-isolation")
        return []
    return [
        Extension(
            f"{PACKAGE}._C",
            sources=["csrc/module.cpp", "csrc/commit.cpp", "csrc/attention.cpp"],
            depends=sorted(glob("csrc/*.h")),
            include_dirs=["csrc", *include_paths()],
            library_dirs=library_paths(),
            libraries=["torch", "torch_cpu", "c10"],
            define_macros=[
                ("TORCH_TARGET_VERSION", TORCH_FLOOR),
                ("TORCH_STABLE_ONLY", None),
                ("LSP_NAMESPACE", NAMESPACE),
                ("LSP_BUILD_FLAGS", '"{}"'.format(" ".join(FLAGS))),
                ("Py_LIMITED_API", "0x030A0000"),
            ],
            extra_compile_args=FLAGS,
            py_limited_api=True,
        )
    ]


def warn(reason: str) -> None:
    print(
        f"warning: {PACKAGE}: the C++ kernels were not built: {reason}.\n"
        "         The PyTorch reference will serve CPU tensors, several times slower.",
        file=sys.stderr,
    )


class OptionalBuild(build_ext):
    """Compiles the extension; a failure becomes one warning."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # no compiler, one that fails, missing headers: the install goes on
            warn(f"{type(error).__name__}: {error}")
            self.extensions = []  # so that there is nothing to copy into the package


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": OptionalBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
