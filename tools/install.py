"""Install distributions of this repository as wheels into the Python that runs this, as a user would. It builds only the requested ones,
says how far it is, and installs nothing again that has not changed.

    python tools/install.py "echo-core[tcp]" ...
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from wheels import PROJECTS, ROOT, say, uv_program

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


def stamp() -> Path:
    """A file in the environment: which build each of our distributions there was installed from."""
    return Path(sys.prefix) / "echo-from-checkout.json"


def recorded() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(stamp().read_text())
        return found
    except (OSError, ValueError):
        return {}


def is_installed(name: str) -> bool:
    """Whether the distribution is installed from an index or a folder of wheels. An editable install, or one of a folder, was made by somebody else."""
    try:
        return distribution(name).read_text("direct_url.json") is None
    except PackageNotFoundError:
        return False


def main() -> None:
    tool = [sys.executable, str(Path(__file__).with_name("wheels.py"))]
    before = recorded()
    # Projects that were installed from here earlier are renewed too: a plugin of an older build may not fit the new core.
    earlier = [name for name in before if is_installed(name)]
    wanted = [*sys.argv[1:], *earlier]
    build = subprocess.run([*tool, *projects(wanted)], check=True, stdout=subprocess.PIPE, text=True)
    wheels = Path(build.stdout.split("\n")[-2])
    command = [uv_program(), "pip", "install", "--quiet", "--python", sys.executable, "--find-links", str(wheels)]
    names = [project(folder)["name"] for folder in projects(wanted)]
    changed = [name for name in names if before.get(name) != wheels.name or not is_installed(name)]
    for name in changed:  # by name and not from uv's cache, because the version stays the same while the sources change
        command += ["--reinstall-package", name, "--refresh-package", name]
    if changed:
        say(f"installing {', '.join(changed)} into {sys.prefix}")
        stamp().unlink(missing_ok=True)  # if the installation is interrupted, the next one does all of it
    subprocess.run([*command, *wanted], check=True)
    stamp().write_text(json.dumps(dict.fromkeys(names, wheels.name)))


if __name__ == "__main__":
    main()
