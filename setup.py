"""Build the fused kernel: optional, because the package works without it; with OpenMP where it is available.

With DYNABOUND_REQUIRE_KERNEL=1 in the environment the build fails without the kernel, for wheels.
"""

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
if "-g" not in os.environ.get("CFLAGS", "").split():  # as `make sanitize` asks for it
    FLAGS.append("-g0")  # Python's own flags contain -g, and nine tenths of the file would be debug information
REPOSITORY = "https://github.com/dynabound/dynabound"
REQUIRED = os.environ.get("DYNABOUND_REQUIRE_KERNEL", "") not in ("", "0")


class BuildKernel(build_ext):
    def build_extension(self, ext):
        try:
            self.compile(ext)
        except Exception as error:
            if REQUIRED:
                raise
            print(
                f"dynabound: the fused kernel was not built: no working C compiler ({error}); steps on the CPU will be "
                "several times slower. Install a C compiler and install dynabound again.",
                file=sys.stderr,
            )

    def compile(self, ext):
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


def readme():
    """README.md with absolute links, because relative ones lead nowhere from the page of a package index."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "dynabound.optim._kernel",
            ["src/dynabound/optim/_kernel.c"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            py_limited_api=True,
            optional=not REQUIRED,  # an editable installation copies it, and must not fail without it
        )
    ],
    cmdclass={"build_ext": BuildKernel},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
