"""The learner's side: a store that workers fill, batches out of it, weights down to the workers."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

import numpy as np
import optree

from ..base.address import Address
from ..base.errors import ClosedError, ConfigError, EchoError
from ..config.table import Table
from ..plugins import discovery
from ..security import tokens
from ..spec.spec import Spec
from ..store.checkpoint import checkpoint
from ..store.replay.rate_limiters import RateLimiter
from ..store.sample import Sample
from ..store.sampler import Sampler
from ..wire.transport import Listener, Transport
from ..wire.weights import aligned_bytes, pack
from . import metrics, mixture
from .arguments import make_tables, make_transports, short_form, stream_sampler
from .operations import OPERATIONS, Operation
from .sink import ServerSink
from .state import ServerState

__all__ = ["Published", "Server"]

_log = logging.getLogger("echo")
_running: weakref.WeakSet[Server] = weakref.WeakSet()


class Published(NamedTuple):
    """What `Server.publish` made: the version and the digest of its bytes, which come back as the workers' receipts."""

    version: int
    digest: int


class Server(ServerState):
    """Assembles samples of many workers into batches for a learner.

    Args:
        example: a pytree of numpy arrays: one sample. It fixes structure, shapes and dtypes for good. None with `tables`.
        batch_size: samples per batch.
        transport: how workers reach this server: a `Transport`, an address such as `"tcp://127.0.0.1:0"` (port 0: any free one),
            a mapping `{"type": "tcp", "port": 0}`, several of these in a list, or None for use within one process.
        sampler: name of an installed sampler, a mapping `{"type": "fifo"}`, or a `Sampler`. One that replays makes this a server of one
            replay table, called "default".
        num_buffers: batch buffers (at least 2): one is being filled while others wait or are held by the learner.
        lease_timeout: seconds that `sample()` waits when batches still alive hold every buffer, before it raises LeaseError.
        pinned: page-lock the memory of the batches, so that they go to a CUDA device by DMA (`non_blocking=True` in torch), and samples in a
            device's memory straight into their slots. Needs CUDA's driver.
        token: secret shared with the workers, or several (`security.tokens.find_tokens`); None takes ECHO_TOKEN, ECHO_TOKEN_FILE or the user's
            token file.
        capacity: items of that table; may also stand in the sampler's mapping.
        remover, rate_limiter, max_times_sampled, seed: of that table, see `Table`.
        tables: several replay tables, each with an example of its own: `Server(tables=[Table(...), ...], batch_size=32)`. `sample()`,
            `submit()` and their like mean the first of them unless told its name; workers name one in `send`.
        host: where plugins are looked up; None sees every installed one that ECHO_DISABLE_PLUGINS does not name.

    Raises:
        SpecError: the example cannot be a sample, naming the leaf.
        PluginError: transport or sampler is not installed or broken; the message ends in the command to run.
        MemoryError: the buffers do not fit into this machine's memory.
        CudaError: `pinned`, and there is no driver, or it does not lock so much.

    Batches are leases: zero-copy, writable, valid for as long as anything refers to them, also after `close()`.
    """

    _operations: ClassVar[Mapping[str, Operation]] = OPERATIONS

    def __init__(
        self,
        example: Any = None,
        batch_size: int = 0,
        transport: Transport | str | Mapping[str, Any] | Iterable[Any] | None = None,
        sampler: Sampler | str | Mapping[str, Any] = "fifo",
        num_buffers: int = 3,
        *,
        capacity: int | None = None,
        remover: Any = "fifo",
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int | None = None,
        seed: int | None = None,
        tables: Iterable[Table] | None = None,
        lease_timeout: float = 10.0,
        pinned: bool = False,
        token: tokens.Explicit = None,
        host: discovery.PluginHost | None = None,
        num_drainers: int | None = None,
        producer_queue_size: int | None = None,
    ) -> None:
        if num_drainers is not None or producer_queue_size is not None:
            warnings.warn("num_drainers and producer_queue_size do nothing: Echo has no drainer threads and no queues", stacklevel=2)
        host = host or discovery.default
        if not lease_timeout >= 0:
            raise ValueError(f"lease_timeout must be 0 or more seconds, not {lease_timeout!r}")
        if tables is None:
            if example is None:
                raise ConfigError("Server needs the example pytree, one sample: Server({'obs': np.zeros(4, np.float32)}, batch_size=32)")
            of_table = {"remover": remover, "rate_limiter": rate_limiter, "max_times_sampled": max_times_sampled, "seed": seed}
            tables = short_form(example, sampler, capacity, of_table, host)
        else:
            given = {"example": example, "sampler": None if sampler == "fifo" else sampler, "capacity": capacity}
            given |= {"remover": None if remover == "fifo" else remover, "rate_limiter": rate_limiter, "max_times_sampled": max_times_sampled, "seed": seed}
            if theirs := [name for name, value in given.items() if value is not None]:
                raise ConfigError(f"with tables=[...], {' and '.join(theirs)} {'belongs' if len(theirs) == 1 else 'belong'} into each Table(...)")
            if isinstance(tables, Table) or not (tables := list(tables)):
                raise ConfigError("tables must be a list of at least one Table(...)")
        super().__init__(token, host.observers())
        self._transports = list(make_transports(transport, host))
        if tables:
            made = make_tables(tables, batch_size, host)
            self._open_tables(made, batch_size)
            self.sampler = next(iter(made.values())).sampler
        else:
            self.sampler = stream_sampler(sampler, host)
            memory = next((t.store_memory for t in self._transports if t.store_memory is not None), None)
            self._open(Spec.from_example(example), batch_size, num_buffers, lease_timeout, memory)
        if pinned:
            self._lock_pages()
        self._life = threading.Lock()  # held while transports open: their callbacks must not need it
        self._checkpointing = threading.Lock()
        self._publishing = threading.Lock()  # versions reach the listeners in order
        self._versions = itertools.count(1)
        self._ticker: metrics.StatsTicker | None = None

    @classmethod
    def from_config(cls, source: Any, example: Any = None, /, **overrides: Any) -> Server:
        """A server as a configuration says: a TOML path, a mapping, or several of them in a list (later ones win).

        Environment variables `ECHO_SERVER__...` win over files, keyword arguments over everything. See docs/configuration.md.

        Args:
            example: a sample; where the configuration has `[[server.tables]]`, of each of them that is not among `examples`.
            overrides: keyword arguments of `Server`, and `examples`: `{table's name: example}`.

        Raises:
            ConfigError: unknown or ill-typed keys, with file, key and suggestion.
        """
        from ..config.config import server_arguments
        from ..config.table_config import with_tables

        examples = overrides.pop("examples", None)
        example, arguments = with_tables(server_arguments(source, overrides), example, examples)
        if example is None and "tables" not in arguments:
            raise ConfigError("Server.from_config needs the example pytree: Server.from_config('echo.toml', example)")
        return cls(example, **arguments)

    # ---- life -------------------------------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Open the transports and let workers in; returns the server itself. Without a transport it does nothing.

        Raises:
            OSError: an address cannot be taken, naming it and the way out.
            SecurityError: an address would be exposed without authentication.
        """
        self._check_process()
        with self._life:
            if self.closed:
                raise ClosedError("this server was closed; make a new one")
            if self._listeners:
                return self
            sink, weights = ServerSink(self), self._weights
            listeners: list[Listener] = []
            try:
                for transport in self._transports:
                    listeners.append(transport.listen(sink))
            except BaseException:
                for listener in listeners:
                    listener.close(0)
                raise
            with self._publishing:
                self._listeners = listeners
                _running.add(self)
                if self._weights is not None and self._weights is not weights:  # published meanwhile
                    for listener in listeners:
                        listener.publish(self._weights)
            self._ticker = metrics.StatsTicker.maybe(self, self._observers)
        return self

    def close(self, timeout: float = 5.0) -> None:
        """End: workers are told, what has arrived whole is committed, every waiting call returns. Idempotent.

        Batches already made can still be taken by `sample()`, which then returns None. `timeout` bounds the farewell, in seconds. In a
        forked child nothing happens: the workers, and the threads that would have to end, are the parent's.
        """
        if not self._same_process():
            return
        with self._life:
            listeners, self._listeners = self._listeners, []
            ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.stop()
        for listener in listeners:
            listener.close(timeout)
        self._close_store()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Server stays in its process; give other processes str(server.address), and make a Client there")

    def __del__(self) -> None:
        self._abandoned()

    def _abandoned(self) -> None:
        """Nobody will close it any more."""
        if getattr(self, "_listeners", None) and self._same_process():
            self.close(0.0)

    # ---- batches ----------------------------------------------------------------------------------------------------------

    def dataset_iter(
        self, *, copy: bool = False, timeout: float | None = None, table: str | None = None, beta: float | None = None
    ) -> Generator[Sample, None, None]:
        """Yield `Sample`s as batches become ready, until the server is closed.

        Args:
            copy: yield copies, so that batches may be hoarded without holding the store's buffers.
            timeout: seconds for each batch; None waits for ever. Raises as `sample()`.
            table, beta: as in `sample()`.
        """
        while (sample := self.sample(timeout, table=table, beta=beta)) is not None:
            if copy:
                sample = sample.with_batch(optree.tree_map(np.copy, sample.batch))
            yield sample
            del sample  # give the buffer back before waiting for the next batch

    def sample_mixture(
        self, shares: Mapping[str, float], timeout: float | None = None, *, n: int | None = None, beta: float | None = None
    ) -> mixture.MixedSample | None:
        """One batch out of several replay tables of the same spec, such as `{"demonstrations": 0.5, "online": 0.5}`.

        Args:
            shares: how much of the batch each table gives, in proportion.
            timeout, n, beta: as in `sample()`.

        Returns:
            `MixedSample(batch, parts, weights)`; None once the server is closed.

        Raises:
            ConfigError: specs differ, naming the leaf, or a share makes no sense. UnknownTableError: no such table. EchoTimeoutError.
        """
        counts = mixture.shares_of(shares, self.batch_size if n is None else n)
        return mixture.draw({name: self.table(name) for name in counts}, counts, timeout, beta)

    # ---- checkpoints ------------------------------------------------------------------------------------------------------

    def checkpoint(self, path: str | os.PathLike[str]) -> str:
        """Write the replay tables to the directory `path` while workers write and learners sample; the directory of this checkpoint.

        Contents, priorities, limiter counts and the samplers' random states are those of one moment of each table. The checkpoint before
        stays until this one is whole.

        Raises:
            OSError: the disk is full, or not writable. CheckpointError: what was stored are not a table's rows; the checkpoint before stays.
            ValueError: this server streams.
        """
        self.table()
        with self._checkpointing:
            return str(checkpoint.save(self.tables, path))

    def restore(self, path: str | os.PathLike[str]) -> Server:
        """Fill the tables of this new server from the newest checkpoint in `path`, before `start()`; returns the server itself.

        Keys of before stay valid, and those given out after the checkpoint name nothing.

        Raises:
            CheckpointError: none there, a damaged file, naming it, or other tables, specs, samplers or limiters than those written.
            ClosedError: the server is closed.
        """
        self.table()
        if self.closed:
            raise ClosedError("this server was closed; restore into a new one")
        with self._checkpointing:
            checkpoint.load(self.tables, path)
        # Items know the versions of before: those that follow are above them.
        newest = max(table.policy_version for table in self.tables.values())
        self._versions = itertools.count(max(next(self._versions), newest + 1))
        return self

    # ---- weights ----------------------------------------------------------------------------------------------------------

    def publish(self, weights: Any) -> Published:
        """Offer a pytree of arrays to the workers; returns at once, the latest wins, none is ever seen torn.

        The arrays are copied, so they may be changed right after. Workers confirm the version and digest they hold: see `stats()`.
        """
        self._check_process()
        with self._publishing:
            packed = pack(weights, next(self._versions), memory=self._weights_memory)
            self._weights = packed
            self._published_at = time.monotonic()
            for table in self.tables.values():
                table.policy_version = packed.version
            for listener in list(self._listeners):
                listener.publish(packed)
        return Published(packed.version, packed.digest)

    def _weights_memory(self, count: int) -> np.ndarray:
        """Where the next version is packed: where workers of this machine read it, if a transport has such memory."""
        for listener in self._listeners:
            if (memory := listener.weights_memory(count)) is not None:
                return memory
        return aligned_bytes(count)

    # ---- looking ----------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> Address:
        """Where workers connect (`str()` gives `tcp://127.0.0.1:5555`); of the first transport, when there are several.

        Raises:
            EchoError: not started, or no transport.
        """
        if not self._listeners:
            why = "is closed" if self.closed else "has not been started: call start()" if self._transports else "has no transport"
            raise EchoError(f"no address: this server {why}")
        return self._listeners[0].address

    @property
    def addresses(self) -> list[Address]:
        """Where workers connect, one address for each transport."""
        return [listener.address for listener in self._listeners]

    @property
    def port(self) -> int:
        """The port of `address`, valid after `start()`."""
        port = self.address.port
        if port is None:
            raise EchoError(f"{self.address} has no port")
        return port

    def stats(self) -> dict[str, float | int | str]:
        """Everything that is counted, as a flat dict ready for a logger: see docs/stats.md for each name."""
        return metrics.server_stats(self)

    def _who_blocks_learner(self) -> str:
        text = super()._who_blocks_learner()
        now = time.monotonic()
        waits = [f"{p.name} {p.state} for {now - p.state_since:.0f} s" for p in self.peers()[:5]]
        return f"{text} [{'; '.join(waits)}]" if waits else text

    def _repr_html_(self) -> str:
        """For notebooks: `stats()` as a table."""
        return metrics.as_html(repr(self), self.stats())

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.addresses)) or ("closed" if self.closed else "not started" if self._transports else "in-process")
        return f"<Server {where} batch_size={self.batch_size} pid={os.getpid()}>"


def _at_exit() -> None:
    """Servers that nobody has closed: later, when the interpreter is taken apart, one that waits for a thread of its own waits for ever."""
    for server in list(_running):
        with suppress(RuntimeError):  # some releases of Python 3.12 start no threads by now
            server._abandoned()


atexit.register(_at_exit)
