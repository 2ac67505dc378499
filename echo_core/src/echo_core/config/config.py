"""Configuration: defaults < files < environment < command line < arguments, checked in two steps.

First core reads its own keys and finds the plugin that a `type` names. Later, when that plugin is
needed, the plugin's own dataclass of options checks the rest. A worker can therefore read the same
file as its learner without having the learner's plugins installed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..base.address import Address
from ..base.errors import AddressError, ConfigError, PluginError, PluginNotFound, did_you_mean, nearest
from ..base.option_reader import Text, build_options, option_fields
from ..plugins.discovery import PluginHost
from ..plugins.replay_package import replay_module
from ..spec.example import from_table
from ..store.sampler import Sampler
from ..wire.transport import Transport
from .layers import Layer, from_command_line, from_environment, from_file, from_mapping
from .plugin_defaults import plugin_defaults
from .sections import (
    KEYS,
    ClientConfig,
    ClusterConfig,
    PluginChoice,
    PluginsConfig,
    SecurityConfig,
    ServerConfig,
    SharedConfig,
    WorkersConfig,
)
from .shared import disagreement, with_shared

__all__ = [
    "ClientConfig",
    "ClusterConfig",
    "Config",
    "PluginChoice",
    "PluginsConfig",
    "SecurityConfig",
    "ServerConfig",
    "Text",
    "WorkersConfig",
    "build_options",
    "client_arguments",
    "load",
    "server_arguments",
    "with_tables",
]

Source = str | os.PathLike[str] | Mapping[str, Any]


class Config:
    """A whole configuration, made by `load`. Only the keys that core knows are checked.

    Attributes:
        shared, server, client, security, plugins, cluster: the sections. `server` and `client` have what `shared` gave them.
        example: the pytree that the tables of `[example]` describe; None if there are no such tables.
        plugin_host: the installed plugins, with the settings of `[plugins]` applied.
        no_tables: why the tables of `[[server.tables]]` were not read, which a worker does not need; None if they were.
    """

    shared: SharedConfig
    server: ServerConfig
    client: ClientConfig
    security: SecurityConfig
    plugins: PluginsConfig
    cluster: ClusterConfig
    plugin_host: PluginHost
    example: Any
    no_tables: PluginNotFound | None = None

    def __init__(self, layer: Layer, env: Mapping[str, str] | None = None) -> None:
        self._given = layer
        self._env = env
        self._check_keys()
        self._layer = layer = with_shared(layer)
        self._origins = layer.dotted_origins()
        sections = {name: {} for name in KEYS} | layer.nested()
        self.shared = self._build(SharedConfig, sections["shared"], "shared")
        self.example = from_table(sections["example"]) if "example" in sections else None
        self.plugins = self._build(PluginsConfig, sections["plugins"], "plugins")
        self.plugin_host = PluginHost(self.plugins.disable, self.plugins.require, env)
        self.security = self._build(SecurityConfig, sections["security"], "security")
        self.cluster = self._build(ClusterConfig, sections["cluster"], "cluster")
        self.server = self._server(sections["server"])
        self.client = self._client(sections["client"])

    def origin(self, key: str) -> str:
        """Where the value of a dotted key came from: a file's path, "environment variable X", ...

        A key that no source gave has the origin "default".

        Raises:
            ConfigError: there is no such key.
        """
        path = tuple(key.split("."))
        if key not in self._origins:
            self._check_key(path, "")
        return self._origins.get(key, "default")

    def require(self, key: str) -> Any:
        """The value of a core key such as "server.batch_size".

        Raises:
            ConfigError: it is not given; the message shows the two ways to give it.
        """
        self.origin(key)
        section, _, name = key.partition(".")
        value = getattr(getattr(self, section), name)
        if value is None:
            variable = "ECHO_" + key.upper().replace(".", "__")
            raise ConfigError(
                f"{key} is missing; add {name} = ... under [{section}], or set {variable}"
            )
        return value

    def explain(self) -> list[tuple[str, Any, str]]:
        """Every key that has a value, as `(key, value, origin)`, defaults included.

        The defaults of the chosen transports and samplers are included too, if these plugins are installed.
        """
        lines = {".".join(path): value for path, value in self._layer.values.items()}
        for section, names in KEYS.items():
            for name in names:
                key = f"{section}.{name}"
                if key in lines or key not in self._origins:
                    value = getattr(getattr(self, section), name, None)
                    lines[key] = value.type if isinstance(value, PluginChoice) else value
        for key, value in plugin_defaults(self.server, self.client, self.plugin_host):
            lines.setdefault(key, value)
        return [(key, lines[key], self.origin(key)) for key in sorted(lines)]

    def disagreement(self) -> str | None:
        """Why this configuration's client would reach none of its server's transports, in words. None if it may reach one, or if the
        configuration describes one end only. Between the two there may be a proxy that makes up for the difference.

        Raises:
            ConfigError, PluginError: a plugin is missing, or an option does not fit.
        """
        address = self.client.address
        if address is None or not self.server.transports:
            return None
        fallbacks = {"auth": self.security.auth, "allow_insecure": self.security.allow_insecure}
        why = disagreement(self.server.transports, address, fallbacks, self.plugin_host)
        return why and f"{self.origin('client.address')}: client.address: {address} reaches no transport of [server]: {why}"

    def check(self) -> None:
        """Also load every plugin that the configuration names, and check its options.

        Raises:
            ConfigError, PluginError: for the first fault.
        """
        self.plugin_host.check_required()
        if self.no_tables is not None:
            raise self.no_tables
        self.sampler()
        for table in self.server.tables:
            table.check_plugins()
        for transport in self.server.transports:
            transport.create()
        if self.client.address is not None or self.client.options:
            self.connect_options()
        if "cluster" in self._origins:
            self.plugin_host.launcher(self.cluster.via)

    def sampler(self) -> Sampler | None:
        """Make the sampler of `[server]`. None if it names none and the default one is not installed, without which `Server` can stream.

        Raises:
            PluginError: it is missing or broken. ConfigError: an option does not fit.
        """
        try:
            return self.server.sampler.create()  # type: ignore[no-any-return]
        except PluginNotFound:
            if any(key == "server.sampler" or key.startswith("server.sampler.") for key in self._origins):
                raise
            return None

    def connect_options(self) -> dict[str, Any]:
        """The options of the connection: those of `[client]` and those behind the `?` of its address,
        checked and converted. Options that were not given are left out.

        Raises:
            PluginError: the transport is missing or broken.
            ConfigError: the address is missing, or an option is unknown or of the wrong type.
        """
        near = nearest("address", self.client.options) if self.client.address is None else None
        if near is not None:
            origin = self.origin(f"client.{near}")
            raise ConfigError(f"{origin}: client.{near}: unknown key; did you mean 'address'?")
        address: Address = self.require("client.address")
        given: dict[str, Any] = {key: Text(value) for key, value in address.options.items()}
        for key in ("timeout", "name"):
            if f"client.{key}" in self._origins and getattr(self.client, key) is not None:
                given[key] = getattr(self.client, key)
        given |= self.client.options
        if "token" in given:
            raise ConfigError(
                f"{self.origin('client.address')}: client.token: a token belongs in [security], "
                "where it is kept out of sight"
            )
        if self.plugin_host.resolves(address.scheme):  # only the server's present address says which transport, and so which options, there are
            return {key: value for key, value in given.items() if key not in address.options}
        try:
            plugin = self.plugin_host.transport_class(address.scheme)
        except PluginError as error:
            origin = self.origin("client.address")
            raise type(error)(f"{origin}: client.address: {error}") from error
        unknown = [key for key in self.client.options if key not in option_fields(plugin.ConnectOptions)]
        if place := sorted({"host", "port"}.intersection(unknown)):
            raise ConfigError(
                f'{self.origin(f"client.{place[0]}")}: client.{place[0]}: unknown key; host and port are parts of the address: address = "tcp://learner:5555"'
            )
        if (near := nearest("address", unknown)) is not None:
            raise ConfigError(f"{self.origin(f'client.{near}')}: client.{near}: unknown key; did you mean 'address'?")
        checked: Any = build_options(plugin.ConnectOptions, given, "client", self._origins)
        return {key: getattr(checked, key) for key in given}

    def replace(self, overrides: Mapping[str, Any]) -> Config:
        """This configuration with `overrides` on top, which have the form that `load(..., overrides=...)` takes."""
        layer = Layer()
        layer.merge(self._given)
        layer.merge(from_mapping(overrides, "arguments"))
        return Config(layer, self._env)

    def __repr__(self) -> str:
        given = sorted(self._layer.values.items())
        shown = [f"{'.'.join(path)}={value!r}" for path, value in given]
        return f"Config({', '.join(shown)})"

    def _build(self, cls: type[Any], mapping: Mapping[str, Any], where: str) -> Any:
        return build_options(cls, mapping, where, self._origins)

    def _server(self, table: dict[str, Any]) -> ServerConfig:
        sampler = table.pop("sampler", None) or {"type": "fifo"}
        transport = table.pop("transport", None)
        table["sampler"] = self._choice("sampler", sampler, "server.sampler")
        if transport is None:
            transports = []
        elif any(key.isdigit() for key in transport):
            transports = [
                self._choice("transport", transport[key], f"server.transport.{key}")
                if key.isdigit()
                else self._mixed(key)
                for key in sorted(transport, key=lambda key: (len(key), key))
            ]
        else:
            transports = [self._choice("transport", transport, "server.transport")]
        table["transports"] = transports
        self._parse_address(table, "server", "weights_from")
        tables = table.pop("tables", None)
        if tables is not None:
            if "server.sampler" in self._origins:
                raise ConfigError(
                    f"{self.origin('server.sampler')}: server.sampler: each of [[server.tables]] has its own sampler; "
                    "keep server.sampler or server.tables"
                )
            if not isinstance(tables, Mapping):
                raise ConfigError(f"{self.origin('server.tables')}: server.tables: must be a list of tables: [[server.tables]]")
            try:
                section = replay_module("config.section", f"{self.origin('server.tables.0.name')}: [[server.tables]]")
            except PluginNotFound as error:
                self.no_tables = error  # a worker reads the same file as its learner, and needs no tables
            else:
                table["tables"] = section.table_configs(tables, self._origins, self.plugin_host)
        return self._build(ServerConfig, table, "server")  # type: ignore[no-any-return]

    def _mixed(self, key: str) -> PluginChoice:
        origin = self.origin(f"server.transport.{key}")
        raise ConfigError(
            f"{origin}: server.transport.{key}: transport is a list; "
            f"name the entry you mean: server.transport.0.{key}"
        )

    def _choice(
        self, kind: Literal["transport", "sampler"], table: Any, where: str
    ) -> PluginChoice:
        options = dict(table)
        name = options.pop("type", None)
        if not isinstance(name, str) or not name:
            origin = self._origins.get(f"{where}.type") or self._origins.get(where)
            advice = 'add type = "tcp", or an address for both ends under [shared]' if kind == "transport" else 'add type = "fifo"'
            raise ConfigError(f'{origin}: {where}: the key "type" is missing; {advice}')
        return PluginChoice(kind, str(name), options, where, self._origins, self.plugin_host)

    def _client(self, table: dict[str, Any]) -> ClientConfig:
        core = {key: value for key, value in table.items() if key in KEYS["client"]}
        free = {key: value for key, value in table.items() if key not in core}
        self._parse_address(core, "client", "address")
        self._parse_address(core, "client", "weights")
        config: ClientConfig = self._build(ClientConfig, core, "client")
        return dataclasses.replace(config, options=free)

    def _parse_address(self, table: dict[str, Any], section: str, key: str) -> None:
        if table.get(key) is not None:
            try:
                table[key] = Address.parse(table[key])
            except AddressError as error:
                name = f"{section}.{key}"
                raise ConfigError(f"{self.origin(name)}: {name}: {error}") from error

    def _check_keys(self) -> None:
        for path, origin in self._given.origins.items():
            self._check_key(path, origin)

    def _check_key(self, path: tuple[str, ...], origin: str) -> None:
        said = f"{origin}: " if origin else ""
        section = path[0]
        if section == "example" and len(path) > 1:  # any name of a leaf is allowed
            return
        if section not in KEYS:
            sections = [*KEYS, "example"]
            hint = did_you_mean(section, sections) or f"; the sections are {', '.join(sections)}"
            raise ConfigError(f"{said}{'.'.join(path)}: no section {section!r}{hint}")
        if len(path) == 1:
            if origin:
                raise ConfigError(f"{said}{section}: must be a table: [{section}]")
        elif section != "client" and path[1] not in KEYS[section]:
            if section == "server" and path[1] in ("host", "port"):
                raise ConfigError(f'{said}{".".join(path)}: unknown key; host and port belong to a transport: transport = "tcp://0.0.0.0:5555"')
            hint = did_you_mean(path[1], KEYS[section])
            hint = hint or f"; known here: {', '.join(KEYS[section])}"
            raise ConfigError(f"{said}{'.'.join(path)}: unknown key{hint}")


def load(
    *sources: Source,
    env: Mapping[str, str] = os.environ,
    command_line: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Read a configuration. For each key, a later source wins over an earlier one.

    Args:
        sources: paths of TOML files, or mappings of sections (from Hydra, pydantic, ...).
        env: variables such as ECHO_SERVER__TRANSPORT__PORT win over the sources.
        command_line: items such as `"server.batch_size=64"` win over the environment.
        overrides: a mapping of sections or of dotted keys, given by the program; it wins over everything.

    Raises:
        ConfigError: a key is unknown or a value does not fit; the message has origin, key and a suggestion.
        SecurityError: other users can read a file that holds a token.
        PluginError: `[plugins] require` is not met.
    """
    layer = Layer()
    for number, source in enumerate(sources, 1):
        if isinstance(source, Mapping):
            layer.merge(from_mapping(source, f"mapping {number}"))
        else:
            layer.merge(from_file(source))
    layer.merge(from_environment(env))
    layer.merge(from_command_line(command_line))
    layer.merge(from_mapping(overrides or {}, "arguments"))
    config = Config(layer, None if env is os.environ else env)
    config.plugin_host.check_required()
    return config


def server_arguments(
    source: Source | Config | Iterable[Source], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Keyword arguments for `Server`. Its sampler and transports are already made; `with_tables` still has to give
    the `tables` their examples.

    `overrides` are keyword arguments of `Server`. Those that are keys of `[server]` win over the
    sources; the others (and objects, such as a `Transport`) are passed on unchanged.

    Raises the errors of `load` and `PluginChoice.create`, ConfigError if there is no batch size, and PluginNotFound if there are tables, and
    echo-replay is not installed.
    """
    config, passed = _with_arguments(source, "server", overrides or {})
    if config.no_tables is not None:
        raise config.no_tables
    security = config.security
    arguments: dict[str, Any] = {
        "batch_size": config.require("server.batch_size"),
        "num_buffers": config.server.num_buffers,
        "lease_timeout": config.server.lease_timeout,
        "pinned": config.server.pinned,
        "client_memory": config.server.client_memory,
        "max_parked": config.server.max_parked,
        "max_parked_per_client": config.server.max_parked_per_client,
        "weights_from": config.server.weights_from,
        "plugins": config.plugin_host,
    }
    if config.server.tables and "tables" not in passed:
        arguments["tables"] = list(config.server.tables)
    elif "sampler" not in passed and "tables" not in passed and (sampler := config.sampler()) is not None:
        arguments["sampler"] = sampler
    if "transport" not in passed and config.server.transports:
        arguments["transport"] = [
            transport.create(auth=security.auth, allow_insecure=security.allow_insecure)
            for transport in config.server.transports
        ]
    if "token" not in passed and security.names_token:
        arguments["token"] = security.accepted()
    config.plugin_host.observers().hook.echo_configure(config=config)
    return arguments | passed


def with_tables(arguments: dict[str, Any], example: Any, examples: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Turn the result of `server_arguments` into the example and the arguments of `Server`: each `Table` gets its example.

    Args:
        example: the example of every table that is not in `examples`.
        examples: examples by the tables' names.

    Raises:
        ConfigError: a table has no example, or an example belongs to no table.
    """
    tables = arguments.get("tables")
    if tables is None or not any(table.example is None for table in tables):
        return example, arguments
    examples = examples or {}
    names = [table.name for table in tables]
    for name in examples:
        if name not in names:
            raise ConfigError(f"examples has a table {name!r} that is not in the configuration{did_you_mean(name, names)}")
    made = []
    for table in tables:
        one = examples.get(table.name, example)
        if one is None:
            raise ConfigError(
                f"table {table.name!r} has no example; use Server.from_config(config, example) or examples={{{table.name!r}: example}}"
            )
        made.append(table.for_example(one))
    return None, {**arguments, "tables": made}


def client_arguments(
    source: Source | Config | Iterable[Source], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Keyword arguments for `Client`, including its address without options.

    `overrides` are keyword arguments of `Client`; they win over the sources.

    Raises the errors of `load` and `Config.connect_options`, and ConfigError if there is no address.
    """
    config, passed = _with_arguments(source, "client", overrides or {})
    security = config.security
    options = config.connect_options()
    address = config.require("client.address")
    if not config.plugin_host.resolves(address.scheme):
        address = dataclasses.replace(address, options={})
    arguments = {"address": address, "auth": security.auth, **options}
    if config.client.weights is not None:
        arguments["weights"] = config.client.weights
    if "token" not in passed and security.names_token:
        arguments["token"] = security.find_token()
    config.plugin_host.observers().hook.echo_configure(config=config)
    return arguments | passed


def _with_arguments(
    source: Any, section: str, overrides: Mapping[str, Any]
) -> tuple[Config, dict[str, Any]]:
    if not isinstance(source, Config):
        one = isinstance(source, (str, os.PathLike, Mapping))
        if not one and not isinstance(source, Iterable):
            raise ConfigError(f"a configuration must be the path of a TOML file, a mapping, or a list of these, not {source!r}")
        source = load(*([source] if one else source))
    passed = {key: value for key, value in overrides.items() if _is_passed(section, key, value)}
    given = {key: value for key, value in overrides.items() if key not in passed}
    return source.replace({section: given}) if given else source, passed


def _is_passed(section: str, key: str, value: Any) -> bool:
    """Whether a keyword argument is passed on unchanged because it is not part of the configuration."""
    if section == "client":
        return key in ("token", "auth", "tables")
    members = value if isinstance(value, (list, tuple)) else [value]
    if key == "tables":
        return not all(isinstance(table, Mapping) for table in members)
    return key not in KEYS[section] or any(isinstance(v, (Transport, Sampler)) for v in members)
