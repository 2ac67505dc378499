"""`echoctl config`: what a configuration says, whether it can be used, and what could be in it."""

from __future__ import annotations

import json

import click

from echo_core.config import config as configuration
from echo_core.config.schema import configuration_schema
from echo_core.security.tokens import Token

from .output import json_option, print_json, table

__all__ = ["command"]

_files = click.option("-c", "--config", "files", multiple=True, type=click.Path(), help="TOML file; of several the later one wins.")
_settings = click.argument("settings", nargs=-1, metavar="[SECTION.KEY=VALUE]...")


@click.group(name="config", short_help="show, validate and describe configurations")
def command() -> None:
    """Configurations: files, environment and command line together."""


@command.command(short_help="every value, and where it came from")
@_files
@_settings
@json_option
def show(files: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> int:
    """Every value, and where it came from."""
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
    """Check every key, and the options of every plugin that is mentioned, which must be installed."""
    config = configuration.load(*files, command_line=settings)
    config.check()
    print_json({"valid": True}) if as_json else click.echo("valid")
    return 0


@command.command(short_help="a JSON Schema, for editors")
@json_option
def schema(as_json: bool) -> int:
    """A JSON Schema of the configuration, with the options of every installed plugin; for editors."""
    made = configuration_schema()
    print_json(made) if as_json else click.echo(json.dumps(made, indent=2))
    return 0
