"""Builds the native modules; everything else is in pyproject.toml."""

import sys

if sys.platform != "linux":
    raise SystemExit(f"Echo runs on Linux only: it needs futexes, memfds and epoll. This is {sys.platform}.")

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

import echo_core

package = Path("src/echo_shm")
capi = Path(echo_core.get_include())
flags = os.environ.get("CXXFLAGS", "").split()  # they come last, so that a build for a debugger can choose another -O
extensions = [
    Extension(
        f"echo_shm.{name}",
        [str(package / f"{name}.pyx")],
        language="c++",
        depends=[str(path) for path in (*package.glob("*.hpp"), *package.glob("*.pxd"), *capi.parent.glob("**/*.h"), *capi.parent.glob("**/*.hpp"))],
        # capi.pxd names the header relative to the package it lies in.
        include_dirs=[str(package), str(capi), str(capi.parent), numpy.get_include()],
        extra_compile_args=["-std=c++20", "-O2", "-Wall", "-Wno-unused-function", *flags],
    )
    for name in ("_direct", "_reserve", "_copier", "_board", "_reaper")
]
# The folder above the package echo_core is where its .pxd files are found, installed or not.
if not {"egg_info", "dist_info", "sdist"} & set(sys.argv):  # these need no translation
    extensions = cythonize(extensions, include_path=["src", str(capi.parent.parent)], build_dir="build/cython")
setup(ext_modules=extensions, options={"build_ext": {"parallel": True}})
