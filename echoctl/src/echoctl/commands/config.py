"""`echoctl config`: shows a configuration, validates it, and describes all possible keys."""

from __future__ import annotations

import json

import click

from echo_core.config.schema import configuration_schema
from echo_core.security.tokens import Token

from ..output import json_option, print_json, table
from ..sources import files_option, load, words_argument

__all__ = ["command"]


@click.group(name="config", short_help="show, validate and describe configurations")
def command() -> None:
    """Show and check configurations, merged from files, environment and command line."""


@command.command(short_help="show every value and its origin")
@files_option
@words_argument
@json_option
def show(files: tuple[str, ...], words: tuple[str, ...], as_json: bool) -> int:
    """Show every value and its origin, with the defaults of the installed transports and samplers that the configuration names."""
    lines = load(files, words).explain()
    if as_json:
        print_json({key: {"value": None if isinstance(value, Token) else value, "origin": origin} for key, value, origin in lines})
    else:
        table(("key", "value", "origin"), [(key, json.dumps(value, default=str), origin) for key, value, origin in lines])
    return 0


@command.command(short_help="check keys, and the options of plugins")
@files_option
@words_argument
@click.option("--proxied", is_flag=True, help="Do not compare the two ends: a proxy or a mesh stands between them.")
@json_option
def validate(files: tuple[str, ...], words: tuple[str, ...], proxied: bool, as_json: bool) -> int:
    """Check every key, and the options of every plugin that the configuration names; these plugins must be installed.

    If the configuration has both ends, the client must also reach the server: the exit code is 1 if transport, port or path differ.
    """
    config = load(files, words)
    config.check()
    why = None if proxied else config.disagreement()
    if as_json:
        print_json({"valid": why is None, "disagreement": why} if why else {"valid": True})
    elif why is None:
        click.echo("valid")
    else:
        click.echo(
            f"{why}\nEach key is valid, but the two ends do not fit: write the address once, as [shared] address."
            " Give --proxied if a proxy or a mesh between them makes up for it."
        )
    return int(why is not None)


@command.command(short_help="print a JSON Schema, for editors")
@json_option
def schema(as_json: bool) -> int:
    """Print a JSON Schema of the configuration, with the options of every installed plugin; for editors."""
    made = configuration_schema()
    print_json(made) if as_json else click.echo(json.dumps(made, indent=2))
    return 0
