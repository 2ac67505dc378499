"""`echoctl config`: shows a configuration, validates it, and describes all possible keys."""

from __future__ import annotations

import json

import click

from echo_core.config import config as configuration
from echo_core.config.schema import configuration_schema
from echo_core.security.tokens import Token

from .output import json_option, print_json, table

__all__ = ["command"]

_files = click.option("-c", "--config", "files", multiple=True, type=click.Path(), help="TOML file; may be repeated, and later files win.")
_settings = click.argument("settings", nargs=-1, metavar="[SECTION.KEY=VALUE]...")


@click.group(name="config", short_help="show, validate and describe configurations")
def command() -> None:
    """Show and check configurations, merged from files, environment and command line."""


@command.command(short_help="show every value and its origin")
@_files
@_settings
@json_option
def show(files: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> int:
    """Show every value and its origin."""
    lines = configuration.load(*files, command_line=settings).explain()
    if as_json:
        print_json({key: {"value": None if isinstance(value, Token) else value, "origin": origin} for key, value, origin in lines})
    else:
        table(("key", "value", "origin"), [(key, json.dumps(value, default=str), origin) for key, value, origin in lines])
    return 0


@command.command(short_help="check keys, and the options of plugins")
@_files
@_settings
@json_option
def validate(files: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> int:
    """Check every key, and the options of every plugin that the configuration names; these plugins must be installed."""
    config = configuration.load(*files, command_line=settings)
    config.check()
    print_json({"valid": True}) if as_json else click.echo("valid")
    return 0


@command.command(short_help="print a JSON Schema, for editors")
@json_option
def schema(as_json: bool) -> int:
    """Print a JSON Schema of the configuration, with the options of every installed plugin; for editors."""
    made = configuration_schema()
    print_json(made) if as_json else click.echo(json.dumps(made, indent=2))
    return 0
