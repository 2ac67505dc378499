"""`echoctl init plugin`: makes a transport or sampler package that passes its contract tests from the start."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import click

from echo_core import __version__
from echo_core.base.installing import how_to_install
from echo_core.base.writing import writing
from echo_core.plugins.hookspecs import PLUGIN_API

from ..output import json_option, print_json
from ..scaffold import CONTRACTS, SAMPLER, SHARED, TRANSPORT

__all__ = ["command"]


@click.group(name="init", short_help="make your own plugin package")
def command() -> None:
    """Make your own package."""


@command.command(short_help="make a package with a transport or a sampler, and tests")
@click.argument("kind", type=click.Choice(["transport", "sampler"]))
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Folder of the package; default: echo-NAME in the current folder.")
@json_option
def plugin(kind: str, name: str, folder: Path | None, as_json: bool) -> int:
    """Make a package that contains a KIND (transport or sampler) named NAME, and its tests.

    Users type NAME in a configuration, or as the scheme of an address. The generated transport uses unix-domain sockets, and the
    generated sampler draws uniformly. Both fulfil the whole contract. Change them as you need.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise click.UsageError(f"{name!r} cannot be a plugin's name; use lower-case letters, digits and _, such as my_{kind}")
    folder = folder or Path(f"echo-{name.replace('_', '-')}")
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} exists and is not empty; give another folder with --dir")
    major, minor, *_ = __version__.split(".")
    kit = "echo-core[net,testing,samplers]" if kind == "transport" else "echo-core[testing,samplers]"
    needed = ["echo-core", "echo-net" if kind == "transport" else "echo-replay"]
    words = {
        "@name@": name,
        "@Name@": "".join(part.capitalize() for part in name.split("_")),
        "@dist@": f"echo-{name.replace('_', '-')}",
        "@api@": str(PLUGIN_API),
        "@needs@": ", ".join(f'"{name}>={major}.{minor},<{major}.{int(minor) + 1}"' for name in needed),
        "@kit@": kit,
        "@kind@": kind,
        "@contract@": CONTRACTS[kind],
    }
    files = {**SHARED, **(TRANSPORT if kind == "transport" else SAMPLER)}
    made = []
    for path, text in files.items():
        for word, meaning in words.items():
            path, text = path.replace(word, meaning), text.replace(word, meaning)
        target = folder / path
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        made.append(str(target))
    steps = [f"# if the kit or the samplers are missing: {how_to_install(kit)}", f"pip install -e {folder}", f"python -m pytest {folder}"]
    if as_json:
        print_json({"folder": str(folder), "files": made, "next": steps})
    else:
        click.echo("\n".join(made) + "\n\nNext:\n  " + "\n  ".join(steps))
    return 0
