"""Builds the compiled kernels; everything else is in pyproject.toml."""

import sys

if sys.platform != "linux":
    raise SystemExit(f"Echo runs on Linux only: it needs futexes, memfds and epoll. This is {sys.platform}.")

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

flags = os.environ.get("CXXFLAGS", "").split()  # they come last, so that a build for a debugger can choose another -O
extensions = [
    Extension(
        "echo_rl.kernels._native",
        [str(Path("src/echo_rl/kernels/_native.pyx"))],
        language="c++",
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        # Sums may be reordered, so that the compiler vectorises them. NaN and infinity keep their meaning, which -ffast-math would not promise.
        extra_compile_args=["-std=c++20", "-O3", "-Wall", "-fno-math-errno", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", *flags],
    )
]
if not {"egg_info", "dist_info", "sdist"} & set(sys.argv):  # these need no translation
    extensions = cythonize(extensions, include_path=["src"], build_dir="build/cython")
setup(ext_modules=extensions)
