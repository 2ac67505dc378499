"""Prints the output of commands: JSON for programs, tables for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from echo_core.base.foreign_text import escaped

__all__ = ["console", "json_option", "print_json", "table"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def print_json(value: Any) -> None:
    """Print one value on one line."""
    click.echo(json.dumps(value, default=str))


def console(stderr: bool = False) -> Any:
    """A rich console. If its output is not a terminal, it prints plain text without wrapping."""
    from rich.console import Console
    from rich.segment import Segment

    class Escaping(Console):
        """Escapes what it prints, apart from its own colours: names in it may be the words of strangers."""

        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments, **options):
                yield segment if segment.control else Segment(escaped(segment.text, keep="\n"), segment.style)

    made = Escaping(stderr=stderr, highlight=False)
    return made if made.is_terminal else Escaping(stderr=stderr, highlight=False, width=10_000, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with a heading."""
    from rich.markup import escape
    from rich.table import Table

    made = Table(*columns, box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    for row in rows:
        made.add_row(*(escape(escaped(str(cell))) for cell in row))
    console().print(made)
