"""The verbs: what one does with this repository. (The test matrix is in tox.ini.) `./dev VERB` sets nox up first."""

from __future__ import annotations

import os
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["demo"]
nox.options.reuse_existing_virtualenvs = True

NATIVE = Path("tests/native")
INCLUDE = "echo_core/src/echo_core/include"


def install(session: nox.Session, groups: list[str], *distributions: str) -> None:
    """Dependency groups of the root pyproject.toml, and distributions of this repository as wheels."""
    session.install(*nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), *groups))
    session.run("python", "tools/install.py", *distributions, silent=True)


@nox.session
def demo(session: nox.Session) -> None:
    """A learner and several workers learn CartPole over TCP, with a live view. Arguments go to `python -m examples.cartpole`."""
    install(session, ["demo"], "echo-core[tcp]")
    session.run("python", "-m", "examples.cartpole", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Echo beside its rivals in one run: a table of ratios, JSON and a plot. Arguments go to `python -m benchmarks run`."""
    install(session, ["bench"], "echo-core[tcp]")
    session.run("python", "-m", "benchmarks", "run", *session.posargs)


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """All wheels and source distributions, for this Python, into dist/."""
    session.run("python", "tools/wheels.py", "--sdist", "--out", "dist", external=True)
    session.run("python", "tools/contents.py", "dist", external=True)


@nox.session(venv_backend="none")
def tsan(session: nox.Session) -> None:
    """The native stress programs under ThreadSanitizer. The argument is seconds per scenario."""
    native_stress(session, "thread")


@nox.session(venv_backend="none")
def asan(session: nox.Session) -> None:
    """The native stress programs under AddressSanitizer and UBSan. The argument is seconds per scenario."""
    native_stress(session, "address,undefined")


def native_stress(session: nox.Session, sanitizer: str) -> None:
    out = Path("build/stress")
    out.mkdir(parents=True, exist_ok=True)
    sources = [*sorted(NATIVE.glob("*_stress.cpp")), *sorted(Path("plugins").glob("*/tests/native/*_stress.cpp"))]
    for source in sources:
        program = out / f"{source.stem}-{sanitizer.split(',')[0]}"
        compiler = os.environ.get("CXX", "g++")
        session.run(compiler, "-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-I", INCLUDE, str(source), "-o", str(program), "-pthread", external=True)
        # ThreadSanitizer wants its shadow memory where address randomisation may have put something else.
        session.run("setarch", "-R", str(program), *session.posargs, external=True)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """The native parsers under libFuzzer (needs clang++). The argument is seconds per target, 60 by default."""
    seconds = session.posargs[0] if session.posargs else "60"
    for source in sorted(Path("plugins").glob("*/tests/native/*_fuzz.cpp")):
        corpus = Path("build/fuzz") / source.stem
        corpus.mkdir(parents=True, exist_ok=True)
        program = f"{corpus}.run"
        flags = ["-std=c++20", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-I", INCLUDE]
        session.run(os.environ.get("CLANGXX", "clang++"), *flags, str(source), "-o", program, "-pthread", external=True)
        session.run(program, f"-max_total_time={seconds}", "-max_len=8192", "-timeout=400", str(corpus), external=True)


@nox.session
def rdma_check(session: nox.Session) -> None:
    """What RDMA can do on this machine: cards, UCX, limits, speed. The argument is the address of a network card (see docs/rdma.md)."""
    install(session, [], "echo-core[rdma]")
    session.run("python", "-m", "echo_rdma.check", *session.posargs)


@nox.session
def rdma_vm(session: nox.Session) -> None:
    """The tests of echo_rdma over verbs, in an emulated machine with a network card in software. Arguments go to pytest there. Needs Debian."""
    install(session, ["test"], "echo-core[rdma,testing]")
    session.run("python", "tools/rdma_vm", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, into build/docs. A warning is an error."""
    install(session, ["docs"], "echo-core[all]")
    session.run("python", "tools/hooks.py", "--check")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "build/docs")


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting and types."""
    session.install(*nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "lint"))
    session.run("ruff", "check", ".")
