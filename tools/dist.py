"""Put the wheels and source distributions of all packages into dist/, for every Python that is found, and try them out.

    python tools/dist.py [PYTHON ...]       # commands such as python3.11

What `./dev test` has built of the same sources is used and not compiled again. dist/ stays whatever the checks find: each Python's wheels are
checked by tools/contents.py, and installed and used in every way by tools/tryout.py. The exit code is 1 if any of that failed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")


def is_here(python: str) -> bool:
    """Whether the command starts; pyenv has a command for each Python that it could select, also where it does not."""
    return shutil.which(python) is not None and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def failed(python: str, dist: Path, *sources: str) -> list[str]:
    """Add the distributions of one Python to `dist` and check them; returns what failed. The first Python also makes the source distributions."""
    made = subprocess.run([python, str(TOOLS / "wheels.py"), *sources], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        return [f"{python}: the wheels could not be built"]
    folder = made.stdout.split("\n")[-2]
    shutil.copytree(folder, dist, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    checks = {"contents.py": [], "tryout.py": [*sources]}
    return [
        f"{python}: tools/{check} found something wrong"
        for check, arguments in checks.items()
        if subprocess.run([python, str(TOOLS / check), folder, *arguments], check=False).returncode
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="default: each of " + ", ".join(PYTHONS) + " that is found")
    pythons = parser.parse_args().pythons or [python for python in PYTHONS if is_here(python)]
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    wrong = [what for number, python in enumerate(pythons) for what in failed(python, dist, *(["--sdist"] if number == 0 else []))]
    count = len(list(dist.glob("*"))) if dist.exists() else 0
    print("\n".join([f"{dist}: {count} wheels and source distributions for {', '.join(pythons)}", *wrong]), flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
