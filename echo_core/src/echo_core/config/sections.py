"""The dataclasses of a configuration: its sections, and the choice of a plugin."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..base.address import Address
from ..base.errors import PluginError
from ..base.option_reader import build_options, default_options
from ..plugins.discovery import PluginHost
from ..security.tokens import Token, find_tokens

__all__ = [
    "KEYS",
    "ClientConfig",
    "ClusterConfig",
    "PluginChoice",
    "PluginsConfig",
    "SecurityConfig",
    "ServerConfig",
    "SharedConfig",
    "WorkersConfig",
]

# The keys that users may write in each section. [client] also takes options of its transport.
KEYS: dict[str, tuple[str, ...]] = {
    "shared": ("address", "listen_host"),
    "server": (
        "batch_size", "sampler", "transport", "tables", "num_buffers", "lease_timeout", "pinned", "client_memory", "max_parked", "max_parked_per_client",
        "weights_from",
    ),
    "client": ("address", "timeout", "name", "weights"),
    "security": ("token_file", "token", "auth", "allow_insecure"),
    "plugins": ("disable", "require"),
    "cluster": ("via", "shards", "workers", "checkpoint", "checkpoint_every", "listen"),
}


PluginClass = type[Any]  # inside PluginChoice, `type` is a field


@dataclass(frozen=True)
class PluginChoice:
    """A plugin that `type` chooses, with options that have not been checked yet.

    Attributes:
        kind: the kind of plugin.
        type: the plugin's name.
        options: the other keys of the table.
        where: the table's dotted key.
    """

    kind: Literal["transport", "sampler"]
    type: str
    options: Mapping[str, Any]
    where: str
    origins: Mapping[str, str] = field(repr=False, compare=False)
    plugins: PluginHost = field(repr=False, compare=False)

    def load(self) -> PluginClass:
        """The plugin's class. Raises PluginError with the key and its origin."""
        find = self.plugins.transport_class if self.kind == "transport" else self.plugins.sampler_class
        try:
            return find(self.type)
        except PluginError as error:
            origin = self.origins.get(f"{self.where}.type")
            if origin is None:
                raise
            raise type(error)(f"{origin}: {self.where}: {error}") from error

    def create(self, **fallbacks: Any) -> Any:
        """Check the options and make the transport or sampler.

        Args:
            fallbacks: values for options that are not given; those that the plugin does not have are ignored.

        Raises:
            PluginError: the plugin is missing or broken.
            ConfigError: an option is unknown, missing or of the wrong type.
        """
        return self.load()(**self.checked(**fallbacks))

    def defaults(self) -> dict[str, Any]:
        """The options that are not given and have a default value, with it; secrets are left out. Raises PluginError like `load`."""
        return default_options(self.load().Options, self.options)

    def checked(self, **fallbacks: Any) -> dict[str, Any]:
        """The given options, checked and converted, and the `fallbacks` that the plugin has. Raises the same errors as `create`."""
        plugin = self.load()
        known = {field.name for field in dataclasses.fields(plugin.Options)}
        given = {key: value for key, value in fallbacks.items() if key in known}
        given |= self.options
        checked: Any = build_options(plugin.Options, given, self.where, self.origins)
        values = {key: getattr(checked, key) for key in given}
        return {key: value.given if isinstance(value, Token) else value for key, value in values.items()}


@dataclass(frozen=True)
class ServerConfig:
    """The section `[server]`. A learner needs `batch_size`; the other keys have defaults."""

    sampler: PluginChoice
    transports: tuple[PluginChoice, ...] = ()
    tables: tuple[Any, ...] = ()  # each is a Table of echo_replay, without its example
    batch_size: int | None = None
    num_buffers: int = 3
    lease_timeout: float = 10.0
    pinned: bool = False
    client_memory: int | None = None
    max_parked: int = 16_384
    max_parked_per_client: int = 128
    weights_from: Address | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.num_buffers < 2:
            raise ValueError(f"num_buffers must be at least 2, not {self.num_buffers}")
        if not self.lease_timeout >= 0:
            raise ValueError(f"lease_timeout must be 0 or more seconds, not {self.lease_timeout}")
        if self.client_memory is not None and self.client_memory < 1:
            raise ValueError(f"client_memory must be at least 1 byte, not {self.client_memory}")
        for name in ("max_parked", "max_parked_per_client"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class SharedConfig:
    """The section `[shared]`: where the learner is, for both ends. `with_shared` has passed it on to `[server]` and `[client]`."""

    address: str | None = None
    listen_host: str | None = None  # where the learner listens, if that is not the host of the address: "0.0.0.0"


@dataclass(frozen=True)
class ClientConfig:
    """The section `[client]`. All other keys are options of the transport that `address` selects."""

    address: Address | None = None
    timeout: float = 30.0
    name: str | None = None
    weights: Address | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.timeout >= 0:
            raise ValueError(f"timeout must be 0 or more seconds, not {self.timeout}")


@dataclass(frozen=True)
class SecurityConfig:
    """The section `[security]`, which both ends read."""

    token_file: Path | None = None
    token: Token | None = None
    auth: bool = True
    allow_insecure: bool = False

    def __post_init__(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given; keep one")

    @property
    def names_token(self) -> bool:
        """Whether these settings say where the token is, so that the environment need not."""
        return self.auth and (self.token is not None or self.token_file is not None)

    def find_token(self) -> Token | None:
        """The token that these settings select; None without authentication. Raises SecurityError."""
        tokens = self._tokens() if self.auth else None
        return tokens[0] if tokens else None

    def accepted(self) -> Path | list[Token] | None:
        """The server's argument `token=`. A file is passed as its path, so that it is read again when it changes.

        It is None without authentication. Raises SecurityError.
        """
        tokens = self._tokens() if self.auth else None
        return self.token_file if tokens and self.token_file is not None else tokens

    def _tokens(self) -> list[Token]:
        if self.token is None:
            return find_tokens(self.token_file)
        return find_tokens(self.token.given)


@dataclass(frozen=True)
class PluginsConfig:
    """The section `[plugins]`: plugins to ignore, and versions that must be installed."""

    disable: tuple[str, ...] = ()
    require: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkersConfig:
    """`workers` in `[cluster]`: how many, and where."""

    min: int = 1
    max: int | None = None  # None: as many as min
    per_node: int = 16
    cpus: float = 1.0  # that a scheduler keeps for each
    restarts: int = 5  # of workers that die, within 10 minutes

    def __post_init__(self) -> None:
        for name in ("min", "restarts"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.max is not None and self.max < max(self.min, 1):
            raise ValueError(f"max must be at least min, which is {self.min}, and at least 1, not {self.max}")
        if self.per_node < 1:
            raise ValueError(f"per_node must be at least 1, not {self.per_node}")
        if not 0 <= self.cpus < float("inf"):
            raise ValueError(f"cpus must be 0 or more, not {self.cpus}")

    @property
    def most(self) -> int:
        """The largest number of workers."""
        return self.min if self.max is None else self.max


@dataclass(frozen=True)
class ClusterConfig:
    """The section `[cluster]`: what starts the shards and workers of a job, and how many."""

    via: str = "local"
    shards: int = 1
    workers: WorkersConfig = WorkersConfig()
    checkpoint: Path | None = None
    checkpoint_every: float = 30.0
    listen: str | None = None  # an address with {node} in it; None leaves it to the launcher

    def __post_init__(self) -> None:
        if self.shards < 0:
            raise ValueError(f"shards must be 0 or more, not {self.shards}")
        if not 0 < self.checkpoint_every < float("inf"):
            raise ValueError(f"checkpoint_every must be a number of seconds above 0, not {self.checkpoint_every}")
