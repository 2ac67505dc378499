"""Build wheels of this repository for the Python that runs this, once per state of the sources, and print their folder.

    python tools/wheels.py [--out DIR] [--sdist] [PROJECT ...]    # folders; without any, all of them
    python tools/wheels.py --list                                 # JSON: which are compiled and which are not, in the order of building

Without --out they go to build/wheels/<python>-<hash of the sources>/ and are made only if they are not there yet. Plugins compile
against echo-core, so that core's wheel is built first, and then the others beside each other.
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
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = ["echo_core", "samplers", "adapters", "echoctl", *sorted(str(p.parent.relative_to(ROOT)) for p in ROOT.glob("plugins/*/pyproject.toml"))]
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


def build(project: str, out: Path, kinds: list[str]) -> None:
    """Build one project into `out`, from a copy, so that no build folder is left in the tree or shared by two Pythons."""
    partial = out / f".{Path(project).name}.{os.getpid()}"
    copy = partial / "src"
    shutil.copytree(ROOT / project, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.so"))
    env = {"CXXFLAGS": "-g0", **os.environ, "UV_FIND_LINKS": str(out), "PIP_FIND_LINKS": str(out)}  # a quarter of the time goes into what -g adds
    command = ["uv", "build", "--quiet", *kinds, "--python", sys.executable, "--find-links", str(out)]
    try:
        subprocess.run([*command, "--out-dir", str(partial / "out"), str(copy)], check=True, env=env)
        for made in [*(partial / "out").glob("*.whl"), *(partial / "out").glob("*.tar.gz")]:
            made.rename(out / made.name)  # at once: others may look meanwhile
    finally:
        shutil.rmtree(partial)


def distribution(project: str) -> str:
    """Its name as files have it."""
    name: str = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]["name"]
    return name.replace("-", "_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help="folders of the projects to build, echo_core among them")
    parser.add_argument("--out", type=Path, help="folder for the wheels (replaced); default: a cache under build/wheels")
    parser.add_argument("--sdist", action="store_true", help="source distributions too")
    parser.add_argument("--list", action="store_true", help="the projects as JSON, and build nothing")
    arguments = parser.parse_args()
    if arguments.list:
        print(json.dumps({"compiled": COMPILED, "pure": [project for project in PROJECTS if project not in COMPILED]}))
        return
    tag = f"{sys.implementation.name}{sysconfig.get_config_var('py_version_nodot')}"
    out = arguments.out or ROOT / "build" / "wheels" / f"{tag}-{digest_of_sources()}"
    if arguments.out:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    kinds = ["--wheel", "--sdist"] if arguments.sdist else ["--wheel"]
    wanted = [name for name in PROJECTS if name in (arguments.projects or PROJECTS) and not list(out.glob(f"{distribution(name)}-*.whl"))]
    if "echo_core" in wanted:
        build(wanted.pop(0), out.resolve(), kinds)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda project: build(project, out.resolve(), kinds), wanted))
    print(out)


if __name__ == "__main__":
    main()
