"""The worker's side: it sends samples to the learner and receives weights from it, over any transport."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from ..base.address import Address, refuse_host_and_port
from ..base.errors import ConfigError, JobEnded
from ..base.forks import Origin
from ..base.green_threads import check_real_threads
from ..base.returned import returned
from ..base.waiting import FAREWELL_SECONDS, Wait
from ..plugins.reaching import Resolver, reach
from ..plugins.replay_package import replay_module
from ..security import tokens
from ..spec.spec import Spec
from ..wire.identity import new_client_id
from ..wire.reservation import CopiedReservation, Reservation
from ..wire.transport import Connection
from ..wire.weights import Weights
from .explained import Reasons
from .leftovers import Leftover, leftover_of
from .outlets import Outlets, close_all, spec_of
from .requests import Requests
from .sender import Sender
from .serving import CallHandler, Serving, abandoned
from .weights_connection import weights_connection

if TYPE_CHECKING:
    from ..plugins.replay_package import MixedSample, PendingSample, RemoteSample, RemoteTable

__all__ = ["Client"]

_log = logging.getLogger("echo")

#: Counters of connections that are added up over a client's tables. The others are those of the own table's connection.
ADDED_UP = frozenset((
    "samples", "acknowledged", "unacknowledged", "bytes_sent", "bytes_received", "frames_sent", "window_bytes_used", "send_blocked", "blocked_seconds",
    "chunks", "chunks_acknowledged", "chunks_unacknowledged",
))


class Client(Sender):
    """A worker's connection to a learner.

    Args:
        address: where the learner listens, such as `"tcp://learner:5555"` (or an `Address`); the scheme selects the transport.
        example: a pytree that shows one sample, like the server's; for a table of steps, `Steps(example)`.
        name: this worker's name in logs and statistics; None is host:pid. The server calls a second worker of the same name `name#2`.
        timeout: seconds: the default timeout of every wait, and how long the client tries to reach the learner.
        connect_timeout: seconds for reaching the learner, if they differ from `timeout`.
        token: the shared secret; None takes ECHO_TOKEN, ECHO_TOKEN_FILE or the user's token file. It is not pickled.
        auth: False connects without a token to a server that asks for none.
        table: the server's replay table that `example` describes and that gets the samples of `send`; None is its first table, or its stream.
        tables: `{name: example}` of further tables for `send(..., table=name)`. Each has its own connection, which is made at its first use, so
            that a full table does not stop another. For the server they are one worker.
        resolve: called as `resolve(address)` before every dial, it returns the address where the server is now, or None if it is not up yet. The
            transport stays the same for the life of the client. The schemes `file`, `dns` and `static`, and those of the entry-point group
            `echo.resolvers`, do this without an argument. See docs/finding-servers.md.
        weights: the address of another server that passes on the learner's weights, such as `"shm://relay"`: `weights()` then takes them from there.
            The token is the same. See docs/relays.md.
        **options: options of the transport, such as `window_bytes`.

    Raises:
        SpecError: the example does not match the server's; the message names the leaf.
        SecurityError: the token is missing or refused. PluginError: the transport is not installed.
        EchoTimeoutError: the learner could not be reached in time. EchoError: gevent or eventlet has replaced threads or sockets.

    Attributes:
        policy_version: the version of the policy that makes the samples sent from now on, for tables that keep versions. `weights()` sets
            it to the version that it returns; set it yourself if the policy changes later. None means the version published last. Setting
            an invalid one raises ValueError.

    All calls are thread-safe, take `timeout=` and can be interrupted by Ctrl-C. A client can be pickled, and the copy makes its own
    connection. After a fork, the child must make its own client.
    """

    def __init__(
        self,
        address: str | Address = "",
        example: Any = None,
        *,
        name: str | None = None,
        timeout: float = 30.0,
        token: tokens.Explicit = None,
        auth: bool = True,
        table: str | None = None,
        tables: Mapping[str, Any] | None = None,
        resolve: Resolver | None = None,
        weights: str | Address | None = None,
        connect_timeout: float | None = None,
        **options: Any,
    ) -> None:
        check_real_threads()
        if not address:
            refuse_host_and_port("Client", "address=", "", options.get("host"), options.get("port"))
        self.address = Address.parse(address)
        self._origin = Origin(f"this client of {self.address}")
        if example is None:
            raise ConfigError(f"Client needs the example pytree, one sample like the server's: Client({str(self.address)!r}, example)")
        self.spec = spec_of(example)
        self._pickled = (type(self), str(self.address), example, {"name": name, "timeout": timeout, "auth": auth, **options})
        if table is not None:
            self._pickled[3]["table"] = options["table"] = table
        if tables:
            self._pickled[3]["tables"] = dict(tables)
        if resolve is not None:
            self._pickled[3]["resolve"] = resolve
        if weights is not None:
            self._pickled[3]["weights"] = str(weights)
        if connect_timeout is not None:
            self._pickled[3]["connect_timeout"] = connect_timeout
        reached = reach(self.address, resolve, timeout if connect_timeout is None else connect_timeout)
        transport, options = reached.transport, {**options, **reached.options}

        first: list[Connection] = []
        carried = self.spec
        wait: Wait | None = None  # of this constructor; it begins with the first dial, so that importing a transport takes none of its time

        # It must not refer to self, which keeps it: a dropped client would stay alive until the garbage collector runs.
        def connect(spec: Spec, *, address: Address = reached.address, **more: Any) -> Connection:
            if first and first[0].ended:  # nobody is there who could answer
                left = first[0].stats()["unacknowledged"]
                raise JobEnded.at(address, left, carried.counted(left))
            secret = tokens.find_token_for(address, token, required=not options.get("allow_unauthenticated")) if auth else None
            nonlocal wait
            wait = wait or Wait(reached.options["connect_timeout"])
            within = None if first else wait.left()  # of the constructor's time; other connections are made later and have their own
            made = transport.connect(address, spec, token=secret, **{"name": name or "", "timeout": timeout} | options | {"connect_timeout": within} | more)
            return returned(made, Connection, f"{address}: connect()")

        self._table, self._timeout = table, timeout
        client_id = str(options.pop("client_id", "") or new_client_id())
        self._outlets = Outlets(connect, Reasons(connect, self.spec, timeout), client_id, example, self.spec, table, tables or {}, self._origin)
        own = self._outlets.own
        self._connection = self._weights_from = own.raw
        first.append(own.raw)
        if weights is not None:
            try:
                source = Address.parse(weights)
                secret = tokens.find_token_for(source, token) if auth else None
                self._weights_from = weights_connection(source, name or "", timeout, wait.left() if wait else timeout, secret)
            except BaseException:
                self._connection.close(0)
                raise
        self._requests = Requests(own.connection)
        self._serving = Serving(Requests(own.raw))
        self._unserved: weakref.finalize[..., Client] | None = None  # what ends `_serving` if the client is dropped
        sends: Any = own.streams or own.records or own.raw
        self._begin(self._outlets.of, sends.send, sends.send_batch, own.explain, own.labels)

    @classmethod
    def from_config(cls, source: Any, example: Any = None, /, **overrides: Any) -> Client:
        """Make a client from a configuration; see `Server.from_config`.

        Raises:
            ConfigError: a key is unknown or has the wrong type; the message has the file, the key and a suggestion.
        """
        from ..config.config import client_arguments

        arguments = client_arguments(source, overrides)
        if example is None:
            raise ConfigError("Client.from_config needs the example pytree: Client.from_config('echo.toml', example)")
        return cls(arguments.pop("address"), example, **arguments)

    # ---- experience up ----------------------------------------------------------------------------------------------------

    send = Sender.send  # named here, too, because the reference lists what a class itself has
    send_batch = Sender.send_batch

    def send_again(self, leftover: Leftover, timeout: float | None = None, *, table: str | None = None) -> None:
        """Send the samples that another client could not deliver, with their priorities and policy versions; see `close`. It takes all or none.

        Args:
            leftover: an element of the list that `close(leftovers=True)` returned.
            timeout: seconds, as in `send_batch`.
            table: the table that gets them; None is the table of the same name.

        Raises:
            ConfigError: the samples have priorities or policy versions, and the table takes none. It also raises the errors of `send_batch`.
        """
        self._outlets.of(leftover.table if table is None else table).send_again(leftover, timeout)

    def end_episode(
        self, end: str = "truncated", timeout: float | None = None, *, table: str | None = None, stream: int = 0
    ) -> None:
        """Mark the step that was sent last to a table of steps as the end of its episode: see `StepStreams.end_episode`.

        Raises:
            ConfigError: the table does not store steps. ValueError: `end` is invalid. It also raises the errors of `send`.
        """
        self._origin.check()
        streams = self._outlets.of(table).streams
        if streams is None:
            raise ConfigError("only tables of steps have episodes: give the client Steps(example) as the table's example")
        streams.end_episode(end, timeout, stream=stream)

    @property
    def policy_version(self) -> int | None:
        return self._outlets.held.version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        self._set_version(version)
        self._outlets.held.version = version

    def reserve(self, timeout: float | None = None) -> Reservation:
        """Memory for one sample, to be filled in place. If the transport has memory to lend, this side makes no copy.

            with client.reserve() as slot:
                slot.sample["obs"][...] = ...    # the example's pytree of arrays
                slot.commit()                    # leaving the block without it gives the slot back

        Over shared memory it is memory of the learner's store, over gRPC memory of the message. Reserved slots have no order relative to
        the samples of `send`. Drop every array of the slot before you commit or abort it.

        Raises:
            EchoError: too many slots are reserved.
            EchoTimeoutError: the store or the window stayed full. ConnectionClosedError, ClosedError: the same as in `send`.
        """
        self._origin.check()
        own = self._outlets.own
        if own.streams is not None:
            raise ConfigError("reserved slots have no order, and steps need one: use send()")
        slot = own.reserve(timeout)
        return CopiedReservation(self.spec, self.send, timeout) if slot is None else slot

    def flush(self, timeout: float | None = None) -> None:
        """Pass all samples of `send` to the network now."""
        wait = self._wait(timeout)
        for outlet in self._outlets.open():
            outlet.connection.flush(wait.left())

    def wait(self, timeout: float | None = None) -> None:
        """Return when all samples of `send` are committed in the learner's store."""
        wait = self._wait(timeout)
        for outlet in self._outlets.open():
            outlet.connection.wait(wait.left())

    def _wait(self, timeout: float | None) -> Wait:
        """The time of one call, which its connections share."""
        self._origin.check()
        seconds = self._timeout if timeout is None else timeout
        if not seconds >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")
        return Wait(seconds)

    # ---- the server's replay tables -----------------------------------------------------------------------------------------

    def table(self, name: str | None = None) -> RemoteTable:
        """A replay table of the server, to sample from it and to change it; None is the table of `example`.

        Raises:
            UnknownTableError: the name is neither this client's table nor one of its `tables`.
        """
        self._origin.check()
        outlets = self._outlets
        made: Callable[..., RemoteTable] = replay_module("remote.remote_steps", "a replay table").remote_table
        if name is None or outlets.is_own(name):
            step = None if outlets.own.streams is None else outlets.own.streams.step
            return made(self._requests, self.spec, self._table, self._timeout, step)
        return made(self._requests, outlets.spec(name), name, self._timeout, outlets.step(name))

    def sample(
        self,
        n: int | None = None,
        timeout: float | None = None,
        *,
        table: str | None = None,
        beta: float | None = None,
        units: Mapping[str, int] | None = None,
    ) -> RemoteSample:
        """Draw n items of a replay table, for a learner in another process than the server's; see `RemoteTable.sample`. Samples of varying length
        come packed, as a `RecordSample`, and can be drawn by a budget instead: `units={axis: rows}`."""
        if units is None:
            return self.table(table).sample(n, timeout, beta)  # type: ignore[arg-type]
        if n is not None:
            raise ValueError("give either n, a number of items, or units, a budget of rows")
        drawn: RemoteSample = self.table(table).sample_units(units, timeout, beta)
        return drawn

    def sample_begin(self, n: int, timeout: float | None = None, *, table: str | None = None, beta: float | None = None) -> PendingSample:
        """Ask for n items of a replay table, and return at once; `collect()` of the result waits for them and returns what `sample` returns.

            pending = [client.sample_begin(64) for client in clients]      # all servers draw at the same time
            batches = [one.collect() for one in pending]

        The request may wait for `timeout` seconds at its table. A batch that is asked for is drawn, also if nobody collects it: `withdraw()` takes
        the request back as long as it waits.
        """
        pending: PendingSample = self.table(table).sample_begin(n, timeout, beta)
        return pending

    def sample_mixture(
        self, shares: Mapping[str, float], n: int, timeout: float | None = None, *, beta: float | None = None
    ) -> MixedSample:
        """Draw one batch of n from several replay tables of the same spec; see `Server.sample_mixture`. The client needs their examples."""
        mixture = replay_module("mixture", "sample_mixture()")
        counts = mixture.shares_of(shares, n)
        mixed: MixedSample | None = mixture.draw({name: self.table(name) for name in counts}, counts, timeout, beta)
        assert mixed is not None  # a closed server raises
        return mixed

    def dataset_iter(
        self, n: int, *, timeout: float | None = None, table: str | None = None, beta: float | None = None, prefetch: int = 2
    ) -> Iterator[RemoteSample]:
        """Yield batches of n items until the server is closed. While the caller works on one, `prefetch` further batches are on the way.

        A batch on the way is already drawn. If items can be drawn only once (queues), the items of batches that nobody reads any more are
        lost, unless the table has a lease (`lease_timeout`). `prefetch=0` draws no batch ahead.
        """
        return self.table(table).batches(n, timeout, beta, prefetch)

    def ack(self, keys: Any, timeout: float | None = None, *, table: str | None = None) -> int:
        """Confirm that the work on items of a table with `lease_timeout` is done; returns how many were leased. See `ReplayTable.ack`."""
        return self.table(table).ack(keys, timeout)

    def update_priorities(self, keys: Any, priorities: Any, timeout: float | None = None, *, table: str | None = None) -> int:
        """Give items new priorities; returns how many of them were gone. See `ReplayTable.update_priorities`."""
        return self.table(table).update_priorities(keys, priorities, timeout)

    # ---- weights down -----------------------------------------------------------------------------------------------------

    def weights(self, timeout: float | None = None, newer_than: int | None = None, like: Any = None) -> Weights:
        """The newest complete version of the weights that the learner published.

        Args:
            timeout: seconds to wait for a version; None is the client's default.
            newer_than: wait for a version above this one; None takes any version.
            like: an example pytree, for structures with namedtuples or dataclasses.

        Returns:
            `Weights(params, version, digest)`; the arrays are read-only and shared with no later version.

        Raises:
            EchoTimeoutError: there was no such version in time. SpecError: `like` does not match; the message names the leaf.
            JobEnded: the learner has ended the job.
        """
        self._origin.check()
        if self._weights_from is not self._connection and self._connection.ended:
            raise JobEnded.at(self.address, self.unacknowledged)
        weights = self._weights_from.weights(timeout, newer_than, like)
        self.policy_version = weights.version
        return weights

    # ---- looking, and the end ---------------------------------------------------------------------------------------------

    def request(
        self, op: str, body: dict[str, Any] | None = None, blob: bytes = b"", timeout: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Request an operation of the server by name, and wait for its answer `(body, blob)`. Raises EchoError with the server's message."""
        self._origin.check()
        body, answer = self._requests.request(op, body or {}, blob, timeout)
        return body, bytes(answer)

    def serve(self, op: str, handler: CallHandler, *, concurrency: int = 1) -> None:
        """Let the server call `handler(body, blob)` here, by `server.ask(peer, op, body, blob)`. The handler returns `(body, blob)`.

        Each operation has `concurrency` threads of its own, so a long call of one operation does not delay calls of another, such as a
        cancellation. An EchoError of the handler is raised at the server with its text; any other exception is logged here too. After a lost
        connection the client goes on serving over the next one, and the result of a call of the lost one is dropped. A copy by pickle serves
        nothing. A client that serves must be closed: what its handlers refer to stays in memory until then.

        Raises:
            ConfigError: the client serves this operation already, or an argument is invalid. ClosedError: the client is closed.
        """
        self._origin.check()
        self._serving.add(op, handler, concurrency)
        if self._unserved is None:
            self._unserved = weakref.finalize(self, abandoned, self._serving, self._connection)
            self._unserved.atexit = False

    def server_stats(self, timeout: float | None = None) -> dict[str, Any]:
        """`Server.stats()` of the learner."""
        return self.request("stats", timeout=timeout)[0]

    def stats(self) -> dict[str, Any]:
        """The counters of this client over all tables, as a flat dict. Those of the weights are those of the connection that `weights()` uses."""
        self._origin.check()
        stats = self._outlets.own.stats()
        for outlet in self._outlets.open()[1:]:
            for name, value in outlet.stats().items():
                if name in ADDED_UP:
                    stats[name] = stats.get(name, 0) + value
        if self._weights_from is not self._connection:
            stats.update((name, value) for name, value in self._weights_from.stats().items() if name.startswith("weights_"))
        return stats

    @property
    def unacknowledged(self) -> int:
        """The number of samples of `send` that are not committed yet, over all tables."""
        self._origin.check()
        return sum(outlet.stats()["unacknowledged"] for outlet in self._outlets.open())

    @property
    def ended(self) -> bool:
        """Whether the learner has ended the job: it was closed on purpose, and does not come back. The server of `weights=` does not count,
        because it may belong to another job."""
        return any(outlet.raw.ended for outlet in self._outlets.open())

    @overload
    def close(self, timeout: float | None = None, *, leftovers: Literal[False] = False) -> None: ...

    @overload
    def close(self, timeout: float | None = None, *, leftovers: Literal[True]) -> list[Leftover]: ...

    def close(self, timeout: float | None = None, *, leftovers: bool = False) -> list[Leftover] | None:
        """Deliver all samples of `send`, then close, within `timeout` seconds in all (None: the client's default). Idempotent.

        Args:
            timeout: seconds.
            leftovers: return what could not be delivered, instead of raising an error about it. Without a `timeout`, the call then waits only
                for a learner that is connected: one that is gone may be gone for good.

        Returns:
            None; with `leftovers`, a `Leftover` for each table whose samples were not all acknowledged, the own table first. The list has every
            sample that was not acknowledged, once and in order, with its priority and policy version, and every call returns the same.
            `send_again` of another client sends it. If a learner stored samples and the connection was lost before it acknowledged them, they
            are in the list too. One thing is missing: a sample of varying length of which the learner has acknowledged the beginning only, which is
            at most one of a table. It is counted (`Leftover.cut`), and the log says so.

        Raises:
            ConfigError: leftovers of steps were asked for. Only their learner has all of them; the client stays open.
            EchoTimeoutError, ConnectionClosedError: the message says how many samples were not acknowledged. The client is closed anyway.
                If Ctrl-C interrupts this call, the client is closed at once, and the next call raises the error if samples are lost.
                JobEnded: the learner has ended the job, samples were not acknowledged, and no call has raised JobEnded before.

        While the learner lives and takes no samples, this waits. After 1 s the log says so.
        """
        if not self._origin.here:
            return [] if leftovers else None  # it is the parent's
        if leftovers and any(outlet.streams is not None for outlet in self._outlets.open()):
            raise ConfigError("steps cannot be handed out as leftovers, because they belong to episodes that only their learner knows")
        self._serving.stop()
        try:
            others = () if self._weights_from is self._connection else (self._weights_from,)
            seconds = self._wait(timeout).timeout
            # A connection that was not told of the end would wait for a learner that does not come back. A relay may have been told while this
            # client's own connection was lost.
            if self.ended or (self._weights_from.ended and not self._connection.stats()["connected"]):
                seconds = min(seconds, FAREWELL_SECONDS)
            outlets = self._outlets.open()
            if leftovers and timeout is None and not any(outlet.raw.stats()["connected"] for outlet in outlets):
                seconds = 0.0
            own, *further = (outlet.connection for outlet in outlets)
            try:
                close_all((*further, *others, own), seconds)
            except (ConnectionError, TimeoutError):
                if not leftovers:
                    raise
            if not leftovers:
                return None
            found = [left for outlet in outlets if (left := leftover_of(outlet.table, outlet.spec, outlet.raw.leftovers())) is not None]
            for left in found:
                if left.cut:
                    _log.warning("%s: one sample is lost: the learner had acknowledged its beginning, and not its end%s", self.address, _of_table(left.table))
            return found
        finally:
            self._serving.join()
            if self._unserved is not None:
                self._unserved.detach()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        try:
            self.close(0 if interrupted else None)
        except (ConnectionError, TimeoutError) as error:
            if kind is None and not self.ended:  # otherwise the block's own error, or the end of the job, is more important
                raise
            if kind is None:
                _log.info("%s", error)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnect, self._pickled

    def __repr__(self) -> str:
        return f"<Client {self.address}>"


def _reconnect(cls: type[Client], address: str, example: Any, options: dict[str, Any]) -> Client:
    client = cls.__new__(cls)
    Client.__init__(client, address, example, **options)
    return client


def _of_table(name: str | None) -> str:
    return "" if name is None else f" (table {name!r})"
