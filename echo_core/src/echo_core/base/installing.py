"""How to install a distribution: the only place where error texts take this from. README.md and docs/install.md say the same for readers.

On the day of the first release, set `PUBLISHED` and shorten those two pages. A test finds any other place that gives such a command.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["OWN", "PUBLISHED", "editable_folder", "how_to_install", "how_to_mend", "how_to_replace"]

PUBLISHED: Final[bool] = False
"""Whether Echo's distributions are on a package index."""

OWN: Final = frozenset(
    {"echo-core", "echo-net", "echo-replay", "echo-testing", "echo-samplers", "echo-tcp", "echo-shm", "echo-grpc", "echo-rdma", "echo-ipc"}
    | {"echo-es", "echo-rl", "echo-cluster", "echo-ray", "echoctl", "echo-adapters"}
)


def how_to_install(requirement: str) -> str:
    """What to do to get one of Echo's own distributions, such as `echo-core[tcp]`; it ends a message."""
    if PUBLISHED:
        return f'run: pip install "{requirement}"'
    # Without --no-index pip would prefer a package of the same name on the index, which anybody can put there before the first release.
    return (
        f'in a checkout of Echo run: python tools/install.py "{requirement}", or with a folder of its wheels, after its dependencies '
        f'(docs/install.md): pip install --no-index --find-links FOLDER "{requirement}"'
    )


def how_to_replace(name: str, requirement: str | None = None) -> str:
    """What to do to get another version of the distribution `name`, or one that is missing; it ends a message.

    Only a distribution of Echo gets a command. Anybody may own any other name on an index, so a name that somebody typed is never
    turned into a command that installs it.
    """
    if _canonical(name) in OWN:
        return how_to_install(requirement or name)
    if folder := editable_folder(name):
        return f"{name} is installed from {folder}: update it there"
    return f"install {requirement or name} from where its author offers it"


def how_to_mend(name: str) -> str:
    """What to do about an installed distribution that is broken; it ends a message. It works for editable installs too."""
    if missing := _missing_requirements(name):
        names = ", ".join(missing)
        todo = how_to_install(_canonical(name)) if _canonical(name) in OWN else f"install {names}"
        return f"{name} requires {names}, and this environment has no such version: {todo}"
    if folder := editable_folder(name):
        return f"mend the code in {folder}"
    if _canonical(name) in OWN:
        return f"uninstall {name}, then {how_to_install(_canonical(name))}"
    return f"install a version of {name} that works with this Python and this echo-core"


def editable_folder(name: str) -> str | None:
    """The folder of an editable install (`pip install -e`); None for any other distribution."""
    try:
        text = distribution(name).read_text("direct_url.json")
        found = json.loads(text or "{}")
        editable = found.get("dir_info", {}).get("editable", False)
        return unquote(urlsplit(found["url"]).path) if editable else None
    except (PackageNotFoundError, ValueError, KeyError, AttributeError):  # "?" stands for a name that is not known
        return None


def _missing_requirements(name: str) -> list[str]:
    """The requirements of an installed distribution that are not installed, or in another version; those of its extras are left out."""
    from packaging.requirements import Requirement  # only a failed import needs it

    missing = []
    try:
        for text in distribution(name).requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                try:
                    met = wanted.specifier.contains(distribution(wanted.name).version, prereleases=True)
                except PackageNotFoundError:
                    met = False
                if not met:
                    missing.append(f"{wanted.name}{wanted.specifier}")
    except (PackageNotFoundError, ValueError, TypeError):  # metadata that cannot be read says nothing
        return []
    return missing


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
