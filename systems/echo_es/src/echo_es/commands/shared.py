"""What the commands have in common: names of Python objects, tables, and JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from echo_core import ConfigError
from echo_core.base.foreign_text import escaped

__all__ = ["json_option", "named", "print_json", "show", "table"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def named(source: str) -> Any:
    """What `package.module:name` is; the folder of the command is searched as well. Raises ConfigError if there is no such thing."""
    module, colon, name = source.partition(":")
    if not colon or not module or not name or "/" in source:  # with a slash it is an address or a path
        raise ConfigError(f"{source!r} names nothing; give package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{source}: {error}; is it installed, or in the folder in which this runs?") from error
    return found


def print_json(value: Any) -> None:
    """Print one value on one line."""
    click.echo(json.dumps(value))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table. Control characters, which strangers may have written, are escaped."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [head, *rows]]


def show(value: float | None) -> str:
    """A reward, or "-" in place of None."""
    return "-" if value is None else f"{value:.6g}"
