"""Builds the native module; everything else is in pyproject.toml."""

import sys

if sys.platform != "linux":
    raise SystemExit(f"Echo runs on Linux only: it needs futexes, memfds and epoll. This is {sys.platform}.")

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

import echo_core

package = Path("src/echo_ipc/_native")
capi = Path(echo_core.get_include())
headers = [str(path) for path in [*sorted(package.glob("*.hpp")), *sorted(package.glob("*.pxd")), *sorted(capi.glob("*.h"))]]
flags = os.environ.get("CXXFLAGS", "").split()  # they come last, so that a build for a debugger can choose another -O
extensions = [
    Extension(
        f"echo_ipc._native.{source.stem}",
        [str(source)],
        language="c++",
        depends=headers,
        include_dirs=[str(package), str(capi), numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=["-std=c++20", "-O2", "-Wall", "-Wno-unused-function", *flags],
    )
    for source in sorted(package.glob("*.pyx"))
]
if not {"egg_info", "dist_info", "sdist"} & set(sys.argv):  # these need no translation
    extensions = cythonize(extensions, include_path=["src"], build_dir="build/cython")
setup(ext_modules=extensions, options={"build_ext": {"parallel": True}})
