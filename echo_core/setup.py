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

package = Path("src/echo_core")
shared = "echo_core._cyutility"  # Cython's code for memoryviews and functions: one module has it, instead of a copy in each
flags = os.environ.get("CXXFLAGS", "").split()  # they come last, so that a build for a debugger can choose another -O
headers = [str(path) for path in sorted(package.glob("**/*.h*")) + sorted(package.glob("**/*.px[di]"))]


def extension(name: str, source: Path) -> Extension:
    return Extension(
        name,
        [str(source)],
        language="c++",
        depends=headers,
        include_dirs=[str(package), str(package / "include"), numpy.get_include()],
        extra_compile_args=["-std=c++20", "-O2", "-Wall", "-Wno-unused-function", *flags],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    )


extensions = [extension(".".join(source.relative_to("src").with_suffix("").parts), source) for source in sorted(package.glob("**/*.pyx"))]
# Many modules, so that they are translated side by side as they are compiled; from 3.14 on a pool's children do not come from a fork,
# and would run this file again.
threads = len(os.sched_getaffinity(0)) if sys.version_info < (3, 14) else 0
if not {"egg_info", "dist_info", "sdist"} & set(sys.argv):  # these need no translation, which takes longer than they do
    extensions = cythonize(extensions, nthreads=threads, include_path=["src"], build_dir="build/cython", shared_utility_qualified_name=shared)
    utility = Path("build/cython/_cyutility.cpp")
    subprocess.run([sys.executable, "-m", "cython", "--cplus", f"--generate-shared={utility}"], check=True)
    extensions.append(extension(shared, utility))
setup(ext_modules=extensions, options={"build_ext": {"parallel": True}})
