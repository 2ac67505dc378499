"""Install the built distributions into empty environments, one for each way to install them, and use them there.

    python tools/tryout.py FOLDER [--sdist] [--way NAME ...]

FOLDER has the wheels of the Python that runs this (tools/wheels.py makes them). With --sdist, everything is also built from its source
distributions. With --way, only these are tried: `core`, the name of an extra of echo-core, or `adapters`. Each environment runs
tools/installed.py. All environments are tried; the exit code is 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path


def distributions(folder: Path) -> list[str]:
    return sorted({path.name.partition("-")[0].replace("_", "-") for path in [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]})


def ways(names: list[str]) -> dict[str, list[str]]:
    """The ways to install, and pip's arguments for each: core alone, core with each extra of another distribution, and everything."""
    core = tomllib.loads((Path(__file__).resolve().parent.parent / "echo_core" / "pyproject.toml").read_text())["project"]
    extras = [name for name, brings in core["optional-dependencies"].items() if name != "all" and any(one.startswith(tuple(names)) for one in brings)]
    alone = {"core": ["echo-core"], **{extra: [f"echo-core[{extra}]"] for extra in extras}, "adapters": ["echo-adapters"]}
    return {**alone, "all": ["echo-core[all]", "echo-adapters"]}


def attempt(folder: Path, way: str, wanted: list[str], ours: list[str], sources: bool = False) -> bool:
    """Install `wanted` into an empty environment, and use it there. Says how it went, and returns whether it went well."""
    title = "Python {}.{}, ".format(*sys.version_info) + way + (", from source" if sources else "")
    with tempfile.TemporaryDirectory(prefix="echo-tryout-") as place:
        python = Path(place, "venv", "bin", "python")
        env = {**os.environ, "XDG_CONFIG_HOME": str(Path(place, "config")), "UV_FIND_LINKS": str(folder)}
        env.pop("PYTHONPATH", None)
        install = ["uv", "pip", "install", "--quiet", "--python", str(python)]
        for name in ours:  # the cache may hold wheels of the same version with other contents
            install += ["--refresh-package", name, *(["--no-binary", name] if sources else [])]
        tools = Path(__file__).resolve().parent
        steps = [
            ["uv", "venv", "--quiet", "--python", sys.executable, str(Path(place, "venv"))],
            *([[str(python), str(tools / "torch_cpu.py")]] if way == "rl" else []),  # the index's own PyTorch brings gigabytes of CUDA
            [*install, *wanted],
            [str(python), "-I", str(tools / "installed.py")],
        ]
        said = ""
        for step in steps:
            done = subprocess.run(step, cwd=place, env=env, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"FAILED {title}: {' '.join(step)}\n{done.stdout}{done.stderr}", flush=True)
                return False
            said = done.stdout.strip()
        print(f"ok {title}: {said}", flush=True)
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sdist", action="store_true", help="build everything from its source distribution as well")
    parser.add_argument("--way", action="append", help="try only this way to install; may be repeated")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    ours = distributions(folder)
    if not ours:
        print(f"{folder}: no wheel and no source distribution; build them: ./dev wheels")
        return 1
    known = ways(ours)
    for name in arguments.way or ():
        if name not in known:
            parser.error(f"there is no way {name!r} to install Echo; there are: {', '.join(known)}")
    tried = [attempt(folder, way, wanted, ours) for way, wanted in known.items() if way in (arguments.way or known)]
    if arguments.sdist:
        tried.append(attempt(folder, "all", known["all"], ours, sources=True))
    return int(not all(tried))


if __name__ == "__main__":
    sys.exit(main())
