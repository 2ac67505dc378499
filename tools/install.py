"""Install distributions of this repository as wheels into the Python that runs this, as a user would. It builds only the requested ones.

    python tools/install.py "echo-core[tcp]" ...
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from wheels import PROJECTS, ROOT

NAME = re.compile(r"([\w.-]+)(?:\[([^]]*)\])?")  # the name of a requirement, with its extras


def projects(wanted: list[str]) -> list[str]:
    """The folders of this repository's distributions that these requirements need, in the order of building."""
    metadata = {content["name"]: (folder, content) for folder in PROJECTS for content in [project(folder)]}
    found: set[str] = set()
    seen: set[str] = set()
    while wanted:
        requirement = wanted[0]
        wanted = wanted[1:]
        match = NAME.match(requirement)
        if match is None or match[1] not in metadata or match[0] in seen:
            continue
        seen.add(match[0])
        folder, content = metadata[match[1]]
        found.add(folder)
        extras = [extra.strip() for extra in (match[2] or "").split(",") if extra.strip()]
        wanted = [*wanted, *content.get("dependencies", []), *(one for extra in extras for one in content["optional-dependencies"][extra])]
    return [folder for folder in PROJECTS if folder in found]


def project(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return content


def main() -> None:
    tool = [sys.executable, str(Path(__file__).with_name("wheels.py"))]
    build = subprocess.run([*tool, *projects(sys.argv[1:])], check=True, stdout=subprocess.PIPE, text=True)
    wheels = Path(build.stdout.split("\n")[-2])
    command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, "--find-links", str(wheels)]
    # They are installed anew each time and not from uv's cache, because the version stays the same while the sources change.
    for name in sorted(wheel.name.partition("-")[0].replace("_", "-") for wheel in wheels.glob("*.whl")):
        command += ["--reinstall-package", name, "--refresh-package", name]
    subprocess.run([*command, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
