"""What is to be started: read from `[cluster]`, `[[server.tables]]` and `[security]`, and checked before anything is started."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_core import Address, ConfigError, Server
from echo_core.config.config import Config, WorkersConfig, with_tables
from echo_core.security.tokens import Token, find_token

from .child import Packed, packed

if TYPE_CHECKING:
    from echo_core import Table

__all__ = ["Plan", "plan_of"]

LISTEN = "tcp://{node}:0"
_OF_SERVER = ("client_memory", "max_parked", "max_parked_per_client")


@dataclass(frozen=True)
class Plan:
    """What is to be started.

    Attributes:
        name: of the cluster.
        shards: how many.
        workers: how many, and where. `n`: how many at first. `scales`: whether their number follows who waits.
        worker: what each worker runs; None if there are none.
        tables: of each shard, with their examples. server: other arguments of each shard's `Server`.
        listen: the address of a shard, in which `{node}` stands for its machine.
        checkpoint: the folder of checkpoints; None if the launcher makes one. checkpoint_every: seconds.
        token: the secret of the cluster.
    """

    name: str
    shards: int
    workers: WorkersConfig
    n: int
    scales: bool
    worker: Packed | None
    tables: tuple[Table, ...]
    server: dict[str, Any]
    listen: str
    checkpoint: Path | None
    checkpoint_every: float
    token: Token = field(repr=False)

    def make_server(self, transports: Sequence[str]) -> Server:
        """The server of one shard, which listens at these addresses."""
        return Server(tables=list(self.tables), batch_size=1, transport=list(transports), token=self.token, **self.server)


def plan_of(
    config: Config,
    worker: Any,
    *,
    shards: int | None,
    workers: int | None,
    tables: Sequence[Table] | None,
    token: Any,
    name: str,
    dumps: Callable[[Any], bytes] | None = None,
) -> Plan:
    """Raises ConfigError if something does not fit together. For the arguments see `echo_core.config.launching.launch`; `dumps` pickles functions."""
    cluster = config.cluster
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
        raise ConfigError(f"name: {name!r} is no name of a cluster; use up to 40 letters, digits, '-' and '_'")
    n_shards = _whole("shards", cluster.shards if shards is None else shards)
    limits = cluster.workers
    if workers is not None:
        limits = WorkersConfig(min(limits.min, _whole("workers", workers)), max(limits.most, workers, 1), limits.per_node, limits.cpus, limits.restarts)
    n = limits.min if workers is None else workers
    if worker is None:
        limits, n = WorkersConfig(0, 1, limits.per_node, limits.cpus, limits.restarts), 0
    if not n_shards and worker is None:
        raise ConfigError("there is nothing to start: give shards, or a worker")
    listen = cluster.listen or LISTEN
    made: tuple[Table, ...] = ()
    if n_shards:
        Address.parse(listen.replace("{node}", "127.0.0.1"))
        made = _tables(config, tables)
    return Plan(
        name=name,
        shards=n_shards,
        workers=limits,
        n=n,
        scales=worker is not None and workers is None and bool(n_shards) and limits.most > limits.min,
        worker=None if worker is None else packed(worker, dumps),
        tables=made,
        server={**{key: getattr(config.server, key) for key in _OF_SERVER}, "weights_from": _text(config.server.weights_from)},
        listen=listen,
        checkpoint=cluster.checkpoint,
        checkpoint_every=cluster.checkpoint_every,
        token=_token(config, token, bool(n_shards)),
    )


def _tables(config: Config, given: Sequence[Table] | None) -> tuple[Table, ...]:
    if given is None and config.no_tables is not None:
        raise config.no_tables
    tables = list(config.server.tables) if given is None else list(given)
    if not tables:
        raise ConfigError("shards need tables: add [[server.tables]] to the configuration, and [example] or tables=[Table(...)] in code")
    found: tuple[Table, ...] = tuple(with_tables({"tables": tables}, config.example)[1]["tables"])
    return found


def _token(config: Config, given: Any, shards: bool) -> Token:
    if given is not None:
        return find_token(given)
    if not config.security.auth:
        raise ConfigError("[security] auth = false: shards and workers of a cluster need a token; leave auth out, and one is made")
    if config.security.names_token and (found := config.security.find_token()) is not None:
        return found
    return Token(secrets.token_hex(16).encode()) if shards else find_token()


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name} must be a whole number of at least 0, not {value!r}")
    return value


def _text(address: Any) -> str | None:
    return None if address is None else os.fspath(address) if isinstance(address, os.PathLike) else str(address)
