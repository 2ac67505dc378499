"""A server made from what a command line gives: configuration files, words, and an example of a sample."""

from __future__ import annotations

import click

from echo_core.base.errors import ConfigError
from echo_core.config.config import Config, server_arguments, with_tables
from echo_core.server.server import Server
from echo_core.spec import example as examples

from .sources import load

__all__ = ["example_option", "server_from"]

example_option = click.option(
    "--example",
    "example_source",
    help="The sample: a .toml or .npz file, or module:function. Default: the table [example] of the configuration.",
)


def server_from(files: tuple[str, ...], words: tuple[str, ...], example_source: str | None, **given: object) -> tuple[Server, Config]:
    """A server that is not started yet, and its configuration.

    Args:
        files, words: of the command line, see `sources`.
        example_source: what `--example` got; None takes the table [example] of the configuration.
        given: keys of `[server]` that options of the command set; None leaves one as it is.

    Raises:
        ConfigError: there is no example or no transport, or the configuration is wrong.
    """
    config = load(files, words, *[f"server.{key}={value}" for key, value in given.items() if value is not None])
    example = examples.load(example_source) if example_source else config.example
    if example is None:
        raise ConfigError("the server needs an example of a sample; add a table [example] to the configuration, or give --example")
    arguments = server_arguments(config)
    if "transport" not in arguments:
        raise ConfigError("no worker could connect; give --transport, such as tcp://127.0.0.1:5555, or server.transport in the configuration")
    example, arguments = with_tables(arguments, example)
    return Server(example, **arguments), config
