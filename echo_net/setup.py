"""Builds the two native modules; everything else is in pyproject.toml."""

import sys

if sys.platform != "linux":
    raise SystemExit(f"Echo runs on Linux only: it needs futexes, memfds and epoll. This is {sys.platform}.")

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

import echo_core

package = Path("src/echo_net")
capi = Path(echo_core.get_include())
core = capi.parent
flags = os.environ.get("CXXFLAGS", "").split()  # they come last, so that a build for a debugger can choose another -O
# A changed layout of a class of the core needs another compilation, even if nothing changed here.
layouts = [core / "spec" / "pytree" / "flattener.pxd", core / "store" / "door" / "capi.pxd", core / "wire" / "reservation.pxd"]
extensions = [
    Extension(
        f"echo_net.{name}",
        [str(package / f"{name}.pyx")],
        language="c++",
        depends=[str(path) for path in [*layouts, capi / "echo_capi.h", capi / "echo_copy.h"]],
        # capi.pxd names the header relative to the package it lies in.
        include_dirs=[str(package), str(capi), str(core), numpy.get_include()],
        extra_compile_args=["-std=c++20", "-O2", "-Wall", "-Wno-unused-function", *flags],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    )
    for name in ("gather", "scatter")
]
# The folder above the package echo_core is where its .pxd files are found, installed or not.
if not {"egg_info", "dist_info", "sdist"} & set(sys.argv):  # these need no translation
    extensions = cythonize(extensions, include_path=["src", str(core.parent)], build_dir="build/cython")
setup(ext_modules=extensions, options={"build_ext": {"parallel": True}})
