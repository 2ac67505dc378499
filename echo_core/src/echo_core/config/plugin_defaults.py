"""The defaults that plugins give to options which no source of a configuration gave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..base.errors import PluginError
from ..base.option_reader import default_options
from ..plugins.discovery import PluginHost
from .sections import ClientConfig, PluginChoice, ServerConfig

__all__ = ["plugin_defaults"]


def plugin_defaults(server: ServerConfig, client: ClientConfig, plugins: PluginHost) -> Iterator[tuple[str, Any]]:
    """Dotted keys and default values of the chosen transports and samplers, and of the client's connection. Secrets are left out.

    Plugins that are missing or broken are left out too, because a worker need not have those of its learner.
    """
    choices = [*server.transports, *([] if server.tables else [server.sampler])]
    for table in server.tables:
        choices += [choice for choice in (table.sampler, table.remover) if isinstance(choice, PluginChoice)]
    for choice in choices:
        with suppress(PluginError):
            yield from ((f"{choice.where}.{name}", value) for name, value in choice.defaults().items())
    if client.address is not None:
        with suppress(PluginError):
            options = plugins.transport_class(client.address.scheme).ConnectOptions
            given = {*client.options, *client.address.options, "token"}
            yield from ((f"client.{name}", value) for name, value in default_options(options, given).items())
