"""Builds the optional C++ extension, which needs a C++ compiler and nothing of torch.

If the build fails, the install still succeeds, the PyTorch reference serves and the wheel is tagged as pure Python.
``LSP_REQUIRE_EXTENSION=1`` makes a failure an error.

``LSP_PACKAGE=name`` builds it for a copy of ``lsp_kernels`` in a folder of that name instead. The operators are
registered under the namespace of the copy, so that both can be loaded in one process.
"""

import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = os.environ.get("LSP_PACKAGE", "lsp_kernels")
NAMESPACE = runpy.run_path(os.path.join(PACKAGE, "_namespace.py"))["NAMESPACE"]  # without importing the package
FLAGS = ["-O3", "-std=c++17", "-fvisibility=hidden", "-g0"]
QUIET = [
    "-Wno-unknown-warning-option",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]  # in gcc's own AVX-512 headers
LINK_FLAGS = {"darwin": ["-undefined", "dynamic_lookup"], "linux": ["-Wl,--no-as-needed", "-ltorch_cpu"]}

extension = Extension(
    f"{PACKAGE}._C",
    sources=[  # slowest first
        "csrc/head.cpp",
        "csrc/product.cpp",
        "csrc/attention.cpp",
        "csrc/commit.cpp",
        "csrc/block.cpp",
        "csrc/module.cpp",
    ],
    depends=sorted(glob("csrc/*.h")),
    include_dirs=["csrc"],
    define_macros=[
        ("LSP_NAMESPACE", NAMESPACE),
        ("LSP_BUILD_FLAGS", '"{}"'.format(" ".join(FLAGS))),
        ("Py_LIMITED_API", "0x030A0000"),
    ],
    extra_compile_args=[*FLAGS, *QUIET],
    extra_link_args=LINK_FLAGS.get(sys.platform, []),
    language="c++",
    py_limited_api=True,
)


class OptionalBuild(build_ext):
    """Compiles the extension; a failure becomes one warning."""

    def run(self) -> None:
        if not self.extensions:
            return
        try:
            if sys.platform == "win32":
                raise RuntimeError("Windows links only against a torch that is there, which this build does without")
            super().run()
        except Exception as error:  # no compiler, one that fails, missing headers of Python: the install goes on
            if os.environ.get("LSP_REQUIRE_EXTENSION") == "1":
                raise
            self.forget(f"{type(error).__name__}: {error}".rstrip("."))

    def build_extensions(self) -> None:
        if sys.platform == "linux":
            self.extensions[0].library_dirs.append(self.link_in_place_of_torch())
        compile_one = self.compiler.compile

        def compile_all(sources: list, **options) -> list:
            """Several files at a time: each takes from seconds to a minute."""
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [each for (each,) in pool.map(lambda source: compile_one([source], **options), sources)]

        self.compiler.compile = compile_all
        super().build_extensions()

    def link_in_place_of_torch(self) -> str:
        """A folder with an empty library of the name of torch's.

        The extension that is linked with it asks for a library of that name, and at run time finds torch's, which
        `import torch` has loaded already. torch does not show its symbols to those who do not ask.
        """
        name, folder = "libtorch_cpu.so", Path(self.build_temp, "in_place_of_torch")
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "empty.cpp"
        source.write_text("")
        objects = self.compiler.compile([str(source.resolve())], output_dir=str(folder))  # else it lands in the clone
        soname = [f"-Wl,-soname,{name}"]
        self.compiler.link_shared_object(objects, str(folder / name), extra_preargs=soname, target_lang="c++")
        return str(folder)

    def forget(self, reason: str) -> None:
        """Leaves the extension out, also one that an earlier build has left behind."""
        Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        self.extensions = []
        self.distribution.ext_modules = []
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None:
            wheel.root_is_pure = True  # tagged by what is in it
        print(
            f"warning: {PACKAGE}: the C++ kernels were not built: {reason}.\n"
            "         The PyTorch reference will serve CPU tensors, several times slower.",
            file=sys.stderr,
        )


setup(
    license="Apache-2.0",
    ext_modules=[extension],
    cmdclass={"build_ext": OptionalBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
