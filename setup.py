"""Build the fused kernel: optional, because the package works without it; with OpenMP where it is available."""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]


class BuildKernel(build_ext):
    def build_extension(self, ext):
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args = ["/O2", "/std:c11", "/openmp"]
            return super().build_extension(ext)
        ext.extra_compile_args = [*FLAGS, "-fopenmp"]
        ext.extra_link_args = ["-fopenmp"]
        try:
            return super().build_extension(ext)
        except Exception as error:  # Apple's clang has no OpenMP
            print(f"dynabound: no OpenMP ({error}); building the kernel for one thread", file=sys.stderr)
        ext.extra_compile_args, ext.extra_link_args = FLAGS, []
        return super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "dynabound.optim._kernel",
            ["src/dynabound/optim/_kernel.c"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
