"""Builds the native samplers; everything else is in pyproject.toml."""

import sys

if sys.platform != "linux":
    raise SystemExit(f"Echo runs on Linux only: it needs futexes, memfds and epoll. This is {sys.platform}.")

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

import echo_core

package = Path("src/echo_samplers")
capi = Path(echo_core.get_include())
flags = os.environ.get("CXXFLAGS", "").split()  # they come last, so that a build for a debugger can choose another -O
extensions = [
    Extension(
        "echo_samplers._native",
        [str(package / "_native.pyx")],
        language="c++",
        depends=[str(path) for path in sorted(package.glob("*.hpp"))] + [str(path) for path in sorted(capi.glob("*.h"))],
        include_dirs=[str(package), str(capi), numpy.get_include()],
        # Contraction is off so that a seed draws the same keys whether or not the machine has fused multiply-add. errno is off because
        # setting it would keep the square root of a weight from being one instruction.
        extra_compile_args=["-std=c++20", "-O2", "-Wall", "-Wextra", "-Wno-psabi", "-ffp-contract=off", "-fno-math-errno", *flags],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    )
]
if not {"egg_info", "dist_info", "sdist"} & set(sys.argv):  # these need no translation
    extensions = cythonize(extensions, include_path=["src", str(capi.parent.parent)], build_dir="build/cython")
setup(ext_modules=extensions)
