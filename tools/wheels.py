"""Build the wheels of this repository for the Python that runs this, once per state of the sources, and print their folder.

    python tools/wheels.py [--out DIR] [--sdist]
    python tools/wheels.py --list                   # JSON: which projects are compiled and which are not, in the order of building

Without --out they go to build/wheels/<python>-<hash of the sources>/ and are made only if they are not there yet. Plugins compile
against echo-core, so that core's wheel is built first and found by the others through PIP_FIND_LINKS.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = ["echo_core", "samplers", "adapters", *sorted(str(p.parent.relative_to(ROOT)) for p in ROOT.glob("plugins/*/pyproject.toml"))]
COMPILED = [project for project in PROJECTS if (ROOT / project / "setup.py").exists()]
SOURCES = {".py", ".pyx", ".pxi", ".pxd", ".hpp", ".h", ".toml", ".in", ".md", ".typed", ".proto", ".html", ".pyi"}


def digest_of_sources() -> str:
    """Hash of every file a build reads, and of what changes how they are compiled."""
    digest = hashlib.sha256(repr([os.environ.get(name) for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS")]).encode())
    for project in PROJECTS:
        for path in sorted((ROOT / project).rglob("*")):
            if path.suffix in SOURCES and not {"build", "tests"} & set(path.relative_to(ROOT).parts) and path.is_file():
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build(out: Path, kinds: list[str]) -> None:
    """Build every project into `out`. Each is built from a copy, so that no build folder is left in the tree or shared by two Pythons."""
    partial = out.with_name(f"{out.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "src").mkdir(parents=True)
    env = {**os.environ, "UV_FIND_LINKS": str(partial), "PIP_FIND_LINKS": str(partial)}
    for project in PROJECTS:
        copy = partial / "src" / Path(project).name
        shutil.copytree(ROOT / project, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.so"))
        command = ["uv", "build", "--quiet", *kinds, "--python", sys.executable, "--find-links", str(partial)]
        subprocess.run([*command, "--out-dir", str(partial), str(copy)], check=True, env=env)
    shutil.rmtree(partial / "src")
    (partial / ".gitignore").unlink(missing_ok=True)
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the wheels (replaced); default: a cache under build/wheels")
    parser.add_argument("--sdist", action="store_true", help="source distributions too")
    parser.add_argument("--list", action="store_true", help="the projects as JSON, and build nothing")
    arguments = parser.parse_args()
    if arguments.list:
        print(json.dumps({"compiled": COMPILED, "pure": [project for project in PROJECTS if project not in COMPILED]}))
        return
    tag = f"{sys.implementation.name}{sysconfig.get_config_var('py_version_nodot')}"
    out = arguments.out or ROOT / "build" / "wheels" / f"{tag}-{digest_of_sources()}"
    out.parent.mkdir(parents=True, exist_ok=True)
    if arguments.out or not out.exists():
        build(out.resolve(), ["--wheel", "--sdist"] if arguments.sdist else ["--wheel"])
    print(out)


if __name__ == "__main__":
    main()
