"""The configuration of a command line: files and settings, in any order."""

from __future__ import annotations

from pathlib import Path

import click

from echo_core.config import config as configuration
from echo_core.config.config import Config

__all__ = ["files_option", "load", "words_argument"]

files_option = click.option(
    "-c", "--config", "files", multiple=True, type=click.Path(), help="TOML file; may be repeated, and later files win. -c may be left out."
)
words_argument = click.argument("words", nargs=-1, metavar="[FILE]... [SECTION.KEY=VALUE]...")


def load(files: tuple[str, ...], words: tuple[str, ...], *settings: str) -> Config:
    """The configuration of `-c` files, then files among `words`, then `settings`, then the settings among `words`.

    A word is a file if it has no = or if there is a file of that name, so `echo.toml` needs no -c. Raises the errors of `load`.
    """
    named = [word for word in words if "=" not in word or Path(word).is_file()]
    return configuration.load(*files, *named, command_line=[*settings, *(word for word in words if word not in named)])
