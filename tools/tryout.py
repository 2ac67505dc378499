"""Install the built distributions into empty environments, one for each name on docs/install.md, and use them there.

    python tools/tryout.py FOLDER [--sdist] [--way NAME ...]

FOLDER has the wheels of the Python that runs this (tools/wheels.py makes them). Each name is installed as the page says: first what its row
names from the index, then the name from the folder alone. Then tools/installed.py uses it. One more environment, `pages`, has all tools;
there tools/commands.py compares them with the commands that the pages show. With --sdist, everything is also built from its source
distributions. With --way, only these are tried: `core`, `tcp` for `echo-core[tcp]`, `es-evosax` for `echo-es[evosax]`, `adapters`, `pages`.
All environments are tried; the exit code is 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from wheels import uv_program

HERE = Path(__file__).resolve().parent
ROW = re.compile(r"^\| `(echo[^`]*)` \|.*\| (.*) \|$", re.M)
#: The names that bring every command which a page shows.
TOOLS = ("all", "es", "cluster", "ray", "rl-gguf")
#: It takes minutes to build, and is tried only if it is named.
SLOW = ("rl-alfworld",)


def distributions(folder: Path) -> list[str]:
    return sorted({path.name.partition("-")[0].replace("_", "-") for path in [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]})


def ways() -> dict[str, tuple[list[str], list[str]]]:
    """The ways to install: what comes from the index, and what comes from the folder. The page's rows name them."""
    page = (HERE.parent / "docs" / "install.md").read_text()
    core = re.findall(r"^\$ pip install (numpy .*)$", page, re.M)[0].split()
    rows = {name: re.findall(r"`([^`]+)`", index) for name, index in ROW.findall(page)}
    found = {short(name): (sorted({*core, *index}), [name]) for name, index in rows.items()}
    tools = [name for name in rows if short(name) in TOOLS]
    return {**found, "pages": (sorted({*core, *(index for name in tools for index in rows[name])}), tools)}


def short(name: str) -> str:
    """`tcp` for `echo-core[tcp]`, `core` for `echo-core`, `rl-hf` for `echo-rl[hf]`."""
    return name.removeprefix("echo-").removeprefix("core[").replace("[", "-").removesuffix("]")


def attempt(folder: Path, way: str, index: list[str], wanted: list[str], ours: list[str], sources: bool = False) -> bool:
    """Install `wanted` into an empty environment, and use it there. Says how it went, and returns whether it went well."""
    title = "Python {}.{}, ".format(*sys.version_info) + way + (", from source" if sources else "")
    with tempfile.TemporaryDirectory(prefix="echo-tryout-") as place:
        python = Path(place, "venv", "bin", "python")
        env = {**os.environ, "XDG_CONFIG_HOME": str(Path(place, "config"))}
        env.pop("PYTHONPATH", None)
        install = [uv_program(), "pip", "install", "--quiet", "--python", str(python)]
        alone = ["--find-links", str(folder), *([] if sources else ["--no-index"])]  # source distributions need the index's build tools
        for name in ours:  # the cache may hold wheels of the same version with other contents
            alone += ["--refresh-package", name, *(["--no-binary", name] if sources else [])]
        steps = [
            [uv_program(), "venv", "--quiet", "--python", sys.executable, str(Path(place, "venv"))],
            *([[str(python), str(HERE / "torch_cpu.py")]] if "torch" in index else []),  # the index's own PyTorch brings gigabytes of CUDA
            [*install, *index],
            [*install, *alone, *wanted],
            [str(python), "-I", str(HERE / ("commands.py" if way == "pages" else "installed.py"))],
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
    parser.add_argument("--way", action="append", help="try only this one; may be repeated")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    ours = distributions(folder)
    if not ours:
        print(f"{folder}: no wheel and no source distribution; build them: ./dev wheels")
        return 1
    known = ways()
    for name in arguments.way or ():
        if name not in known:
            parser.error(f"there is no way {name!r} to install Echo; there are: {', '.join(known)}")
    chosen = arguments.way or [name for name in known if name not in SLOW]
    tried = [attempt(folder, way, *known[way], ours) for way in known if way in chosen]
    if arguments.sdist:
        tried.append(attempt(folder, "all", known["all"][0], [*known["all"][1], "echo-adapters"], ours, sources=True))
    return int(not all(tried))


if __name__ == "__main__":
    sys.exit(main())
