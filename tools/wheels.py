"""Build wheels of this repository for the Python that runs this, once per state of the sources, and print their folder.

    python tools/wheels.py [--out DIR] [--sdist] [PROJECT ...]    # folders; without any, all of them
    python tools/wheels.py --list                                 # JSON: which are compiled and which are not, in the order of building

Without --out they go to build/wheels/<python>-<hash of the sources>/ and are made only if they do not exist yet. While one process makes
them, others wait. Plugins compile against echo-core, so core's wheel is built first, and then the others in parallel. All are built with
the tools of one permanent environment, build/tools/<python>/. Its headers have the same paths each time, so that ccache, if it is
installed, recognises earlier compilations.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("*", "plugins/*", "systems/*")  # examples that are also distributions are not released
FOUND = sorted({str(file.parent.relative_to(ROOT)) for place in PLACES for file in ROOT.glob(f"{place}/pyproject.toml")})
PROJECTS = ["echo_core", *(folder for folder in FOUND if folder != "echo_core")]
COMPILED = [project for project in PROJECTS if (ROOT / project / "setup.py").exists()]
SAY_SECONDS = 10.0  # between two lines that say how far a build is
SOURCES = {".py", ".pyx", ".pxi", ".pxd", ".hpp", ".h", ".toml", ".in", ".md", ".typed", ".proto", ".html", ".pyi"}


def digest_of_sources() -> str:
    """A hash of every file that a build reads, and of the settings that affect the compilation."""
    digest = hashlib.sha256(repr([os.environ.get(name) for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS")]).encode())
    for project in PROJECTS:
        for path in sorted((ROOT / project).rglob("*")):
            if path.suffix in SOURCES and not {"build", "tests"} & set(path.relative_to(ROOT).parts) and path.is_file():
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Admit one process at a time; others wait. The lock is released when the process ends in any way."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def uv_program() -> str:
    """The uv on the PATH or beside this Python, or one that is fetched into build/uv, so that nobody has to install it beforehand."""
    beside = Path(sys.executable).with_name("uv")
    if found := shutil.which("uv") or (str(beside) if beside.exists() else None):
        return found
    folder = ROOT / "build" / "uv"
    if not (folder / "bin" / "uv").exists():
        say("fetching uv, which installs packages, into build/uv")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"], check=True)
    return str(folder / "bin" / "uv")


def uv(*arguments: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run([uv_program(), *map(str, arguments)], check=True, env=env)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(project: str, copy: Path) -> Iterator[None]:
    """Say what is built and, from time to time, how far it is. `copy` is the folder in which it is built."""
    modules, start, over = len(list(copy.rglob("*.pyx"))), time.monotonic(), threading.Event()

    def count() -> None:
        while not over.wait(SAY_SECONDS):
            # Cython may add a module of its own, which is not counted.
            translated, compiled = (min(len(list((copy / "build").rglob(pattern))), modules) for pattern in ("*.cpp", "*.o"))
            took = time.monotonic() - start
            say(f"  {project}: {translated} of {modules} modules translated, {compiled} compiled, after {took // 60:.0f}:{took % 60:02.0f} min")

    say(f"building {project}" + (f": {modules} module{'s' * (modules > 1)} to compile" if modules else ""))
    thread = threading.Thread(target=count, daemon=True)
    if modules:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if modules:
            thread.join()


def tools(tag: str) -> Path:
    """The Python of the environment that builds our projects. It has every project's build requirements except our own distributions."""
    folder = ROOT / "build" / "tools" / tag
    python = folder / "bin" / "python"
    if not python.exists():
        uv("venv", "--quiet", "--python", sys.executable, folder)
    wanted = {requirement for project in PROJECTS for requirement in content(project)["build-system"]["requires"]}
    uv("pip", "install", "--quiet", "--python", python, *sorted(one for one in wanted if not one.startswith("echo-")))
    return python


def compiler(env: dict[str, str]) -> dict[str, str]:
    """Compile through ccache if it is installed and nobody has chosen a compiler."""
    if shutil.which("ccache") is None or "CC" in env or "CXX" in env:
        return {}
    # Paths are relative and there is no debug information, so that ccache can use a result of one folder in another.
    return {"CC": "ccache gcc", "CXX": "ccache g++", "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}


def build(project: str, out: Path, kinds: list[str], python: Path) -> None:
    """Build one project into `out`, from a copy, so that no build folder is left in the tree or shared by two Pythons."""
    partial = out / f".{Path(project).name}.{os.getpid()}"
    copy = partial / "src"
    shutil.copytree(ROOT / project, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.so"))
    env = {"CXXFLAGS": "-g0", **os.environ, **compiler(dict(os.environ))}  # -g would take a quarter of the time
    try:
        with progress(project, copy):
            uv("build", "--quiet", *kinds, "--no-build-isolation", "--python", python, "--out-dir", partial / "out", copy, env=env)
        for made in [*(partial / "out").glob("*.whl"), *(partial / "out").glob("*.tar.gz")]:
            made.rename(out / made.name)  # rename is atomic, as others may read the folder meanwhile
    finally:
        shutil.rmtree(partial)


def build_all(wanted: dict[str, list[str]], out: Path, tag: str) -> None:
    """Build what is wanted of each project: its wheel, its source distribution or both."""
    python = tools(tag)
    if "echo_core" in wanted:
        build("echo_core", out, wanted.pop("echo_core"), python)
    (core,) = out.glob("echo_core-*.whl")
    uv("pip", "install", "--quiet", "--python", python, "--reinstall-package", "echo-core", "--refresh-package", "echo-core", core)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda project: build(project, out, wanted[project], python), wanted))


def content(project: str) -> dict[str, Any]:
    """The content of its pyproject.toml."""
    return tomllib.loads((ROOT / project / "pyproject.toml").read_text())


def distribution(project: str) -> str:
    """Its name in the form of file names."""
    name: str = content(project)["project"]["name"]
    return name.replace("-", "_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help="folders of the projects to build, echo_core among them")
    parser.add_argument("--out", type=Path, help="folder for the wheels (replaced); default: a cache under build/wheels")
    parser.add_argument("--sdist", action="store_true", help="also build source distributions")
    parser.add_argument("--list", action="store_true", help="the projects as JSON, and build nothing")
    arguments = parser.parse_args()
    if arguments.list:
        print(json.dumps({"compiled": COMPILED, "pure": [project for project in PROJECTS if project not in COMPILED]}))
        return
    tag = f"{sys.implementation.name}{sysconfig.get_config_var('py_version_nodot')}"
    out = (arguments.out or ROOT / "build" / "wheels" / f"{tag}-{digest_of_sources()}").resolve()
    kinds = {"--wheel": "whl", "--sdist": "tar.gz"} if arguments.sdist else {"--wheel": "whl"}
    chosen = arguments.projects or PROJECTS
    with alone(f"wheels-{tag}"):
        if arguments.out:
            shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        lacking = {
            name: [kind for kind, ending in kinds.items() if not list(out.glob(f"{distribution(name)}-*.{ending}"))] for name in PROJECTS if name in chosen
        }
        if wanted := {name: which for name, which in lacking.items() if which}:
            say("Echo is built once for these sources and this Python; that takes some minutes")
            build_all(wanted, out, tag)
    print(out)


if __name__ == "__main__":
    main()
