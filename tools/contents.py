"""Check the contents of wheels and source distributions: each must have one package, types and a licence, and nothing else.

    python tools/contents.py FOLDER

It prints one line for each problem. The exit code is 1 if there is any.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

SOURCES = (".pyx", ".pxi", ".cpp", ".hpp", ".c", ".pyc")
COMPILED_AGAINST = "echo_core"  # its headers are for native plugins; tests/packaging/test_wheels.py lists them


def of_wheel(path: Path) -> Iterator[str]:
    package = path.name.partition("-")[0]
    with zipfile.ZipFile(path) as archive:
        files = archive.namelist()
    tops = {file.partition("/")[0] for file in files}
    for top in sorted(tops - {package}):
        if not (top.startswith(f"{package}-") and top.endswith(".dist-info")):
            yield f"has a top-level {top!r} in addition to its package"
    if f"{package}/py.typed" not in files:
        yield "has no py.typed, so type checkers ignore its annotations"
    if not any("/licenses/" in file for file in files):
        yield "has no licence"
    for file in files:
        if file.endswith(SOURCES) and not (package == COMPILED_AGAINST and file.endswith(".hpp")):
            yield f"has a source of a compiled module: {file}"
        if re.search(r"(^|/)(tests?|build)/", file):
            yield f"has a file that belongs only to the repository: {file}"
    if path.name.endswith("-none-any.whl") and any(file.endswith(".so") for file in files):
        yield "has compiled modules but says that it runs anywhere"
    stubs = {file.removesuffix(".pyi") for file in files if file.endswith(".pyi")}
    for file in files:
        module = file.partition(".")[0]
        if file.endswith(".so") and module not in stubs and not module.endswith("/_cyutility"):  # Cython's own code, which nobody imports
            yield f"has no type stub for {file}"


def of_sdist(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        files = [name.partition("/")[2] for name in archive.getnames()]
    for wanted in ("pyproject.toml", "PKG-INFO", "LICENSE"):
        if wanted not in files:
            yield f"has no {wanted}"
    for file in files:
        if file.endswith((".so", ".pyc")) or file.startswith("build/"):
            yield f"has a built file: {file}"


def main(folder: str) -> int:
    found = sorted([*Path(folder).glob("*.whl"), *Path(folder).glob("*.tar.gz")])
    if not found:
        print(f"{folder}: no wheel and no source distribution; build them: ./dev wheels")
        return 1
    wrong = [f"{path.name}: {what}" for path in found for what in (of_wheel(path) if path.suffix == ".whl" else of_sdist(path))]
    print("\n".join(wrong) or f"{len(found)} distributions, nothing wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
