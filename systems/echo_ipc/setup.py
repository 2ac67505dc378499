"""Builds the native module; everything else is in pyproject.toml."""

import sys

if sys.platform != "linux":
    raise SystemExit(f"Echo runs on Linux only: it needs futexes, memfds and epoll. This is {sys.platform}.")

from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

package = Path("src/echo_ipc")
extension = Extension(
    "echo_ipc._native",
    [str(package / "_native.pyx")],
    language="c++",
    depends=[str(header) for header in sorted((package / "native").glob("*.hpp"))],
    include_dirs=[str(package), numpy.get_include()],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    # CXXFLAGS come after these: a sanitizer build only adds to them.
    extra_compile_args=["-std=c++20", "-O2", "-Wall", "-Wno-unused-function"],
)
setup(ext_modules=cythonize([extension], include_path=["src"], build_dir="build/cython"))
