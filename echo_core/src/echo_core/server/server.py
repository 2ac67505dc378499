"""The learner's side: workers fill its store, the learner takes batches from it, and weights go to the workers."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import optree

from ..base.address import Address
from ..base.errors import ClosedError, ConfigError, NoAddressError
from ..base.green_threads import check_real_threads
from ..base.spare_threads import check_spare_threads
from ..plugins import discovery
from ..plugins.replay_package import replay_module
from ..security import tokens
from ..spec.spec import Spec
from ..store.sample import Sample
from ..store.sampler import Sampler
from ..store.storage import Storage
from ..store.stream.no_samples import NoSamples
from ..store.stream.stream import Stream
from ..wire.peer import Peer
from ..wire.transport import Transport
from .arguments import make_tables, make_transports, short_form, stream_sampler
from .id_echo import wants_locked_pages
from .open_listeners import OpenListeners, logged, open_listener
from .operations import OPERATIONS, Operation
from .operations.others import served
from .requests.parked import MOST_PARKED, MOST_PARKED_PER_CLIENT
from .returning import ReturnWatch
from .sink import ServerSink
from .state import ServerState
from .statistics import metrics
from .statistics.missing_samples import who_waits, why_no_samples
from .weights.publishing import Published
from .weights.weights_source import WeightsSource

if TYPE_CHECKING:
    from .. import RateLimiter, Table
    from ..plugins.replay_package import MixedSample

__all__ = ["Published", "Server"]

THREADS = 3  # of one listener, at least; each client of most transports takes two more

_log = logging.getLogger("echo")
_running: weakref.WeakSet[Server] = weakref.WeakSet()


class Server(ServerState):
    """Assembles samples of many workers into batches for a learner.

    Args:
        example: a pytree of numpy arrays that shows one sample. It fixes structure, shapes and dtypes. None with `tables`, and for a server that
            takes no samples: `Server(transport="tcp://127.0.0.1:0")` serves requests and weights only.
        batch_size: samples per batch.
        transport: how workers reach this server: a `Transport`, an address such as `"tcp://127.0.0.1:0"` (port 0: any free port),
            a mapping `{"type": "tcp", "port": 0}`, several of these in a list, or None for use within one process.
        num_buffers: batch buffers (at least 2). One is being filled while others wait or are held by the learner.
        sampler: name of an installed sampler, a mapping `{"type": "fifo"}`, or a `Sampler`. A replay sampler makes this a server with one
            replay table, named "default".
        lease_timeout: seconds that `sample()` waits while live batches hold every buffer, before it raises LeaseError.
        pinned: page-lock the memory of the batches. Batches then go to a CUDA device by DMA (`non_blocking=True` in torch), and samples from
            a device's memory go straight into their slots. It needs CUDA's driver.
        token: one or several secrets shared with the workers (`security.tokens.find_tokens`); None takes ECHO_TOKEN, ECHO_TOKEN_FILE or
            the user's token file.
        capacity: the most items of the replay table; the sampler's mapping may hold it instead.
        remover, rate_limiter, max_times_sampled, seed: arguments of that table; see `Table`.
        tables: several replay tables, each with its own example: `Server(tables=[Table(...), ...], batch_size=32)`. `sample()`,
            `submit()` and similar methods use the first table unless they get a name; workers give a name to `send`.
        client_memory: bytes that all clients together may make this server hold: batches that are fetched in parts, parts of requests, and
            incomplete frames. One connection may make it hold a quarter of that. None is an eighth of the memory of this machine or
            container.
        max_parked, max_parked_per_client: how many requests of all clients, and of one connection, may wait for an answer that is given later
            (`serve`, `Later`). The bytes of these requests count in `client_memory`.
        weights_from: the address of another server, whose weights this one passes on: see docs/relays.md. It proves itself there with the first
            of its own tokens, which needs the role `read`.
        observers: objects whose methods with `@hookimpl` are called beside those of installed observer plugins: when a client connects or
            leaves, and with the figures about once a second. See docs/plugins/hooks.md.
        plugins: where plugins are looked up; None uses every installed plugin that ECHO_DISABLE_PLUGINS does not name.
        id_echo: arguments of id-echo's server, which programs written for it may still give: docs/coming-from.md.

    Raises:
        SpecError: the example cannot be a sample; the message names the leaf.
        PluginError: a transport or sampler is not installed or broken, or an observer has a hook that Echo does not have; the message ends in
            the command to run.
        MemoryError: the buffers do not fit into this machine's memory.
        CudaError: `pinned` is set, and there is no driver or it does not lock that much memory.

    Batches are leases: they are zero-copy and writable, and stay valid as long as anything refers to them, also after `close()`.
    """

    _operations: ClassVar[Mapping[str, Operation]] = OPERATIONS

    def __init__(
        self,
        example: Any = None,
        batch_size: int = 0,
        transport: Transport | str | Mapping[str, Any] | Iterable[Any] | None = None,
        num_buffers: int = 3,
        *,
        sampler: Sampler | str | Mapping[str, Any] = "fifo",
        capacity: int | None = None,
        remover: Any = "fifo",
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int | None = None,
        seed: int | None = None,
        tables: Iterable[Table] | None = None,
        lease_timeout: float = 10.0,
        pinned: bool = False,
        token: tokens.Explicit = None,
        observers: Iterable[object] = (),
        plugins: discovery.PluginHost | None = None,
        client_memory: int | None = None,
        max_parked: int = MOST_PARKED,
        max_parked_per_client: int = MOST_PARKED_PER_CLIENT,
        weights_from: str | Address | None = None,
        **id_echo: Any,
    ) -> None:
        pinned = wants_locked_pages(id_echo, Server, transport) or pinned
        if isinstance(num_buffers, (str, Mapping, Sampler)):
            raise ConfigError(f"num_buffers must be a whole number, not {num_buffers!r}; give a sampler by name: Server(..., sampler={num_buffers!r})")
        check_real_threads()
        plugins = plugins or discovery.default
        if not lease_timeout >= 0:
            raise ValueError(f"lease_timeout must be 0 or more seconds, not {lease_timeout!r}")
        of_table = {"remover": None if remover == "fifo" else remover, "rate_limiter": rate_limiter, "max_times_sampled": max_times_sampled, "seed": seed}
        of_samples = {"sampler": None if sampler == "fifo" else sampler, "capacity": capacity, **of_table}
        if tables is not None:
            if theirs := [name for name, value in {"example": example, **of_samples}.items() if value is not None]:
                raise ConfigError(f"with tables=[...], {' and '.join(theirs)} {'belongs' if len(theirs) == 1 else 'belong'} in each Table(...)")
            if not isinstance(tables, Iterable) or not (tables := list(tables)):
                raise ConfigError("tables must be a list of at least one Table(...)")
        elif example is not None:
            tables = short_form(example, sampler, capacity, {**of_table, "remover": remover}, plugins)
        elif theirs := [name for name, value in {"batch_size": batch_size or None, **of_samples}.items() if value is not None]:
            raise ConfigError(
                f"Server needs the example pytree, one sample: Server({{'obs': np.zeros(4, np.float32)}}, batch_size=32); a server without one "
                f"takes no samples, so that it has no use for {' and '.join(theirs)}"
            )
        if isinstance(observers, (str, bytes)) or not isinstance(observers, Iterable):
            raise ConfigError(f"observers must be a list of objects, not {observers!r}; write observers=[...]")
        if weights_from is not None:  # before a token file is made for this server's own clients, which the source would not accept
            tokens.find_token_for(Address.parse(weights_from), token)
        super().__init__(token, plugins.observers(*observers), client_memory, max_parked, max_parked_per_client)
        if weights_from is not None:
            self._source = WeightsSource(weights_from, token)
        self._transports = list(make_transports(transport, plugins))
        self.sampler: Sampler | None = None
        if tables:
            made = make_tables(tables, batch_size, plugins)
            self.sampler = next(iter(made.values())).sampler  # type: ignore[attr-defined]
            for one in made.values():
                one.use_memory(self.client_memory)
            self._open(made)
        elif example is None:
            self._open({"": NoSamples()})
        else:
            self.sampler = stream_sampler(sampler, plugins)
            memory = next((t.store_memory for t in self._transports if t.store_memory is not None), None)
            self._open({"": Stream(Spec.from_example(example), batch_size, num_buffers, lease_timeout, memory)})
        if pinned:
            self._lock_pages()
        self._life = threading.Lock()  # it is held while transports open, so their callbacks must not acquire it
        self._opened = OpenListeners()
        self._ticker: metrics.StatsTicker | None = None
        self._returns: ReturnWatch | None = None

    @classmethod
    def from_config(cls, source: Any, example: Any = None, /, **overrides: Any) -> Server:
        """Make a server from a configuration: a TOML path, a mapping, or a list of these (later ones win).

        Environment variables `ECHO_SERVER__...` win over files, and keyword arguments win over everything. See docs/configuration.md.

        Args:
            example: one sample. If the configuration has `[[server.tables]]`, it is the example of every table that is not in `examples`.
            overrides: keyword arguments of `Server`, and `examples`: `{table's name: example}`.

        Raises:
            ConfigError: a key is unknown or has the wrong type; the message has the file, the key and a suggestion.
        """
        from ..config.config import server_arguments, with_tables

        examples = overrides.pop("examples", None)
        example, arguments = with_tables(server_arguments(source, overrides), example, examples)
        if example is None and "tables" not in arguments:
            raise ConfigError("Server.from_config needs the example pytree: Server.from_config('echo.toml', example)")
        return cls(example, **arguments)

    # ---- life -------------------------------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Open the transports and accept workers; returns the server itself. Without a transport it does nothing.

        Raises:
            ListenError: an address cannot be bound; the message names the address and a remedy. It is an OSError.
            SecurityError: an address would be exposed without authentication.
        """
        self._check_process()
        with self._life:
            if self.closed:
                raise ClosedError("this server was closed; make a new one")
            if self._draining:
                raise ClosedError("this server was drained; make a new one")
            if self._listeners:
                return self
            sink, publishing = ServerSink(self), self._publishing
            try:
                for transport in self._transports:
                    check_spare_threads(THREADS, f"a listener of {transport.scheme}")
                    self._opened.append(open_listener(transport, sink))
                with publishing.lock:
                    self._listeners = list(self._opened)
                    _running.add(self)
                    publishing.listening(self._listeners)
                self._ticker = metrics.StatsTicker.maybe(self, self._observers)
                self._returns = ReturnWatch.maybe(self)
                if self._source is not None:
                    self._source.start(self)
            except BaseException:
                self._listeners = []
                self._publishing.listeners = ()
                with logged("while start() gave up"):
                    self._opened.close(0.0)
                raise
        return self

    def close(self, timeout: float = 5.0, *, restarting: bool = False) -> None:
        """Close the server, which ends the job. Samples that have arrived completely are committed, workers are told that the job has ended, and
        every waiting call returns. Idempotent.

        A worker that was told so does not try to connect again: its calls raise JobEnded. `with Server(...)` ends the job in the same way if its
        block ends without an error, by KeyboardInterrupt, or by SystemExit without an error code. After any other exception, after `drain()`, and
        if this server passes on the weights of a learner that goes on (`weights_from`), workers try to connect again instead, for their
        `timeout`. So they do if the server is never closed, or dropped: Echo cannot know whether the program ended well.

        `sample()` still returns the batches that are already complete, and then None. If Ctrl-C interrupts this call, every waiting call
        returns too, and the transports end without it; another `close()` waits for that. In a forked child this does nothing: the workers, and
        the threads that would have to end, belong to the parent.

        Args:
            timeout: the most seconds that it takes to notify the workers. With 0, some may not be told that the job has ended.
            restarting: the job goes on with another server, at this address or where `resolve=` of the clients says; workers connect to that one.

        Raises:
            The first error of a transport that could not be closed. The others and the server are closed anyway.
        """
        if not self._same_process():
            return
        try:
            with self._life:
                self._listeners = []
                self._publishing.listeners = ()
                ticker, self._ticker = self._ticker, None
                returns, self._returns = self._returns, None
            for timer in (self._source, ticker, returns):
                if timer is not None:
                    timer.stop()
        finally:
            try:
                self._calls.close()
                if restarting or self._draining or not (self._source is None or self._source.job_ended):
                    self._end_requests()
                    self._opened.close(timeout)
                else:  # clients that wait for an answer get the error that says that the job has ended
                    try:
                        self._opened.close(timeout, "end_job")
                    finally:
                        self._end_requests()
            finally:
                self._close_store()

    def _end_requests(self) -> None:
        """Answer the requests that wait for an answer: with the error of a closed server."""
        self._parked.close()
        for operations in self._of_storages.values():
            operations.close()

    def drain(self, timeout: float = 30.0) -> None:
        """Take this server out of service: clients get no new sessions, samples that have arrived completely are committed and acknowledged as far
        as there is room, and connected clients are told "draining". Idempotent.

        A client that resolves its server's address (`Client(resolve=...)`) connects to another one, and sends its other samples there; others
        try again here, until their `timeout` is over. Parked requests fail with ClosedError. The batches that are here can still be
        taken, until `close()`. Clients may ask for this by the operation "drain", which needs the role `admin` (`echoctl drain`).

        Args:
            timeout: the most seconds that it takes to notify the clients.

        Raises:
            ClosedError: the server is closed. It also raises the first error of a transport that could not be closed.
        """
        self._check_process()
        with self._life:
            if self.closed:
                raise ClosedError("this server was closed")
            self._draining = True
            self._listeners = []
            self._publishing.listeners = ()
        self._parked.close("the server is draining")
        self._opened.close(timeout, "drain")

    @property
    def ready(self) -> bool:
        """Whether clients can connect: the server is started, and neither draining nor closed."""
        return bool(self._listeners) and not self._draining and not self.closed

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        ended_well = error is None or isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code in (None, 0))
        self.close(restarting=not ended_well)

    def __reduce__(self) -> Any:
        raise TypeError("a Server cannot be pickled; give other processes str(server.address), and make a Client there")

    def __del__(self) -> None:
        self._abandoned()

    def _abandoned(self) -> None:
        """Close a server that was dropped, as nobody else can close it any more. That does not end the job: the program may have failed."""
        if (getattr(self, "_opened", None) or getattr(self, "_parked", None)) and self._same_process():
            self.close(0.0, restarting=True)

    # ---- batches ----------------------------------------------------------------------------------------------------------

    def dataset_iter(
        self,
        *,
        copy: bool = False,
        timeout: float | None = None,
        table: str | None = None,
        beta: float | None = None,
        units: Mapping[str, int] | None = None,
    ) -> Generator[Sample, None, None]:
        """Yield `Sample`s as batches become ready, until the server is closed.

        Args:
            copy: yield copies, so that many batches can be kept without holding the store's buffers.
            timeout: seconds for each batch; None waits for ever. Raises the same errors as `sample()`.
            table, beta, units: as in `sample()`.
        """
        while (sample := self.sample(timeout, table=table, beta=beta, units=units)) is not None:
            if copy:
                sample = sample.with_batch(optree.tree_map(np.copy, sample.batch))
            yield sample
            del sample  # give the buffer back before waiting for the next batch

    def sample_mixture(
        self, shares: Mapping[str, float], timeout: float | None = None, *, n: int | None = None, beta: float | None = None
    ) -> MixedSample | None:
        """Draw one batch from several replay tables of the same spec, such as `{"demonstrations": 0.5, "online": 0.5}`.

        Args:
            shares: the proportion of the batch that each table gives.
            timeout, n, beta: as in `sample()`.

        Returns:
            `MixedSample(batch, parts, weights)`; None once the server is closed. Samples of varying length come packed, as a
            `MixedRecordSample`, which unpacks in the same way.

        Raises:
            ConfigError: the specs differ (the message names the leaf), or a share is invalid. UnknownTableError: there is no such table.
            EchoTimeoutError: a table gave no items in time.
        """
        self.table()  # it raises an error if this server streams
        mixture = replay_module("mixture", "sample_mixture()")
        counts = mixture.shares_of(shares, self.batch_size if n is None else n)
        mixed: MixedSample | None = mixture.draw({name: self.table(name) for name in counts}, counts, timeout, beta)
        return mixed

    # ---- checkpoints ------------------------------------------------------------------------------------------------------

    def checkpoint(self, path: str | os.PathLike[str]) -> str:
        """Write the replay tables to the directory `path` and return the directory of this checkpoint. Workers and learners can go on meanwhile.

        For each table, the contents, priorities, limiter counts and the sampler's random state belong to the same moment. The previous
        checkpoint stays until this one is complete.

        Raises:
            FileWriteError: the disk is full or not writable; the message names the file, how much is free and the checkpoint that stays.
                It is an OSError. CheckpointError: the written data are not the rows of a table; the previous checkpoint stays here too.
                ValueError: this server streams and has no tables.
        """
        self.table()
        return str(_checkpoints().save(self.tables, path))

    def restore(self, path: str | os.PathLike[str]) -> Server:
        """Fill the tables of this new server from the newest checkpoint in `path`, before `start()`; returns the server itself.

        `path` is the directory that `checkpoint` was given, or the one that it returned.

        Keys that were given out before the checkpoint stay valid. Keys that were given out after it belong to no item.

        Raises:
            CheckpointError: there is no checkpoint, a file is damaged (the message names it), or the checkpoint has other tables, specs,
                samplers or limiters than this server.
            ClosedError: the server is closed.
        """
        self.table()
        if self.closed:
            raise ClosedError("this server was closed; restore into a new one")
        _checkpoints().load(self.tables, path)
        # Restored items carry old policy versions, so new versions must have higher numbers.
        self._publishing.at_least(max(table.policy_version for table in self.tables.values()))
        return self

    # ---- weights ----------------------------------------------------------------------------------------------------------

    def publish(self, weights: Any, version: int | None = None) -> Published:
        """Offer a pytree of arrays to the workers, and return at once. The latest version wins, and no worker ever sees a torn one.

        Leaves may be arrays and tensors, and Python numbers, bools, strings and bytes, which arrive exactly as they were given. All are copied, so
        they may be changed right after. Workers confirm the version and digest that they hold: see `stats()` and `receipts()`.

        This server keeps one copy. While a version of 64 MiB or more is being packed, the one before is no longer offered, so that its memory
        can be freed first. If Ctrl-C or a lack of memory ends this call then, new subscribers get nothing until the next one.

        Args:
            version: its number; it must be above all earlier ones. None is the next number, beginning with 1.

        Raises:
            SpecError: a leaf cannot travel unchanged; the text names it.
            ValueError, TypeError: the number is not above the newest, or is no whole number. ConfigError: this server has `weights_from`.
            The first error of a transport that could not take the version. The others have it.
        """
        self._check_process()
        if self._source is not None:
            raise ConfigError(f"this server passes on the weights of {self._source.address}; publish there, or leave weights_from out")
        return self._publishing.publish(weights, version, self.storages.values())

    @property
    def weights_source(self) -> WeightsSource | None:
        """Where the weights come from, and whether they do; None without `weights_from`."""
        return self._source

    # ---- requests of clients ----------------------------------------------------------------------------------------------

    def serve(self, op: str, handler: Callable[..., Any], *, roles: Iterable[str] = ("write",)) -> None:
        """Let clients request an operation of your own: `client.request(op, body, blob)` calls `handler(server, peer, body, blob)` here.

        The handler returns `(body, blob)`, or a `Later` if the answer comes later. `body` is a dict that JSON can carry, and `blob` bytes, or a
        list of buffers. Requests and answers may be larger than a message. An EchoError of the handler is raised at the client; any other
        exception is logged here too. The handler gets the server as an argument: if it referred to the server itself, a dropped server would
        not be closed. It is called on a thread of the transport and must not wait: return a `Later` instead.

        Args:
            op: the name, of the form `"plugin/operation"`.
            roles: the client's token needs one of these (`admin` always suffices); without any, it needs `admin`.

        Raises:
            ConfigError: the name has no "/" or exists already, or a role is unknown.

        It may be called at any time, before or after `start()`.
        """
        self._check_process()
        operation = served(op, handler, roles)
        with self._lock:
            if op in self._served or op in self._operations:
                raise ConfigError(f"this server has an operation {op!r} already; choose another name")
            self._served[op] = operation

    def ask(self, peer: Peer, op: str, body: dict[str, Any] | None = None, blob: bytes = b"", timeout: float | None = None) -> tuple[dict[str, Any], bytes]:
        """Call an operation that a client serves (`Client.serve`), and wait for its result (body, blob). It can be called from many threads.

        If the client is busy, or does not serve the operation yet, the call waits until the client asks for it. If it has served no operation at
        all within 5 s of its connection, the call fails at once. Calls of one operation reach a client in order. No call is ever sent twice.

        Args:
            peer: the client, one of `peers()`. After a reconnect it is another one.
            body, blob: a dict that JSON can carry, and bytes. They may be larger than a message, as in `serve`.
            timeout: seconds; None waits for as long as the client is connected.

        Raises:
            ConnectionClosedError: the client has left, or its connection is lost, even if it comes back. The message says whether it may have
                carried out the call.
            EchoTimeoutError: there was no result in time. EchoError: the client's handler failed; it has the handler's message. Or the client
                serves nothing.
            ClosedError: this server is closed.
        """
        self._check_process()
        if not isinstance(peer, Peer):
            raise TypeError(f"ask() needs a client, one of server.peers(), not {peer!r}")
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be 0 or more seconds or None, not {timeout!r}")
        return self._calls.ask(peer, op, {} if body is None else body, blob, None if timeout == math.inf else timeout)

    # ---- looking ----------------------------------------------------------------------------------------------------------

    def add_stats(self, prefix: str, function: Callable[[], Mapping[str, float | int | str]]) -> None:
        """Show figures of your own in `stats()`, in Prometheus, and in `echoctl top`: `function()` returns `{name: value}`, shown as `prefix/name`.

        It is called on any thread, whenever somebody asks for the figures. If it raises, the error is logged once and the other figures are
        shown. In Prometheus, numbers have the name `echo_<prefix>_<name>`; they are counters if the name ends in `_total`.

        Raises:
            ConfigError: the prefix belongs to other figures, or is no name of small letters, digits and "_".
        """
        self._check_process()
        self._added_stats.add(prefix, function)

    @property
    def address(self) -> Address:
        """The address where workers connect (`str()` gives `tcp://127.0.0.1:5555`). With several transports it is that of the first.

        Raises:
            NoAddressError: the server is not started, is closed, or has no transport.
        """
        if not self._listeners:
            why = "was drained" if self._draining else "has not been started: call start()" if self._transports else "has no transport"
            why = "is closed" if self.closed else why
            raise NoAddressError(f"no address: this server {why}")
        return self._listeners[0].address

    @property
    def addresses(self) -> list[Address]:
        """The addresses where workers connect, one for each transport."""
        return [listener.address for listener in self._listeners]

    @property
    def port(self) -> int:
        """The port of `address`, valid after `start()`. Raises the same error, also if the address has no port."""
        port = self.address.port
        if port is None:
            raise NoAddressError(f"{self.address} has no port")
        return port

    def stats(self) -> dict[str, float | int | str]:
        """All statistics as a flat dict that is ready for a logger; docs/stats.md explains each name."""
        self._check_process()
        return metrics.server_stats(self)

    def _open(self, storages: Mapping[str, Storage]) -> None:
        super()._open(storages)
        self._of_storages = {name: storage.operations() for name, storage in storages.items()}
        this = weakref.ref(self)  # storages must not keep a dropped server alive
        for storage in storages.values():
            storage.why_no_samples = lambda: why_no_samples(server) if (server := this()) is not None else "the server is gone"
            storage.who_waits = lambda: who_waits(server) if (server := this()) is not None else ""

    def _repr_html_(self) -> str:
        """`stats()` as a table, for notebooks."""
        return metrics.as_html(repr(self), self.stats())

    def __repr__(self) -> str:
        state = "drained" if self._draining else "not started" if self._transports else "in-process"
        where = ", ".join(map(str, self.addresses)) or ("closed" if self.closed else state)
        batches = f" batch_size={self.batch_size}" if self.batch_size else ""
        return f"<Server {where}{batches} pid={os.getpid()}>"


def _checkpoints() -> Any:
    return replay_module("checkpoint.checkpoint", "a checkpoint")


def _at_exit() -> None:
    """Close the servers that are still open. Later, while the interpreter shuts down, a server that joins its own thread would wait for ever."""
    for server in list(_running):
        if server._peers and not server.closed and server._same_process():
            _log.warning("%r was left open, so its clients try to connect again; call close(), or use a with statement, to end the job", server)
        with suppress(RuntimeError):  # some releases of Python 3.12 cannot start threads at this point
            server._abandoned()


atexit.register(_at_exit)
