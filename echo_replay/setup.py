"""Builds the Cython modules; everything else is in pyproject.toml."""

import sys

if sys.platform != "linux":
    raise SystemExit(f"Echo runs on Linux only: it needs futexes, memfds and epoll. This is {sys.platform}.")

import os
import subprocess
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

import echo_core

package = Path("src/echo_replay")
shared = "echo_replay._cyutility"  # Cython's code for memoryviews and functions: one module has it, instead of a copy in each
capi = Path(echo_core.get_include())
core = capi.parent
flags = os.environ.get("CXXFLAGS", "").split()  # they come last, so that a build for a debugger can choose another -O
# A changed layout of a class of the core needs another compilation, even if nothing changed here.
headers = [str(path) for folder in (package, core) for pattern in ("**/*.h*", "**/*.px[di]") for path in sorted(folder.glob(pattern))]


def extension(name: str, source: Path) -> Extension:
    return Extension(
        name,
        [str(source)],
        language="c++",
        depends=headers,
        # The .pxd files of the core name its headers relative to the package they lie in, and so do our headers.
        include_dirs=[str(package), str(core), str(capi), numpy.get_include()],
        extra_compile_args=["-std=c++20", "-O2", "-Wall", "-Wno-unused-function", *flags],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    )


extensions = [extension(".".join(source.relative_to("src").with_suffix("").parts), source) for source in sorted(package.glob("**/*.pyx"))]
# From 3.14 on a pool's children do not come from a fork, and would run this file again.
threads = len(os.sched_getaffinity(0)) if sys.version_info < (3, 14) else 0
# The folder above the package echo_core is where its .pxd files are found, installed or not.
if not {"egg_info", "dist_info", "sdist"} & set(sys.argv):  # these need no translation, which takes longer than they do
    extensions = cythonize(
        extensions, nthreads=threads, include_path=["src", str(core.parent)], build_dir="build/cython", shared_utility_qualified_name=shared
    )
    utility = Path("build/cython/_cyutility.cpp")
    subprocess.run([sys.executable, "-m", "cython", "--cplus", f"--generate-shared={utility}"], check=True)
    extensions.append(extension(shared, utility))
setup(ext_modules=extensions, options={"build_ext": {"parallel": True}})
