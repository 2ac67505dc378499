"""The worker's side: it sends samples to the learner and receives weights from it, over any transport."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..base.address import Address
from ..base.errors import ConfigError
from ..base.green_threads import check_real_threads
from ..base.returned import returned
from ..base.waiting import Wait
from ..plugins.reaching import Resolver, reach
from ..security import tokens
from ..server import mixture
from ..spec.spec import Spec
from ..store.steps.steps import Steps, StepStreams, new_client_id
from ..wire.labels import SUFFIX, Held, LabelledConnection, UnlabelledError, labelled
from ..wire.reservation import CopiedReservation, Reservation
from ..wire.transport import Connection
from ..wire.weights import Weights
from .explained import ExplainedConnection, Reasons
from .other_tables import OtherTables, close_all
from .plain_sender import PlainSender
from .remote_steps import remote_table
from .remote_table import RemoteSample
from .requests import Requests
from .serving import CallHandler, Serving, abandoned
from .weights_connection import weights_connection

if TYPE_CHECKING:
    from .remote_table import RemoteTable

__all__ = ["Client"]


class Client:
    """A worker's connection to a learner.

    Args:
        address: where the learner listens, such as `"tcp://learner:5555"` (or an `Address`); the scheme selects the transport.
        example: a pytree that shows one sample, like the server's; for a table of steps, `Steps(example)`.
        name: this worker's name in logs and statistics; None is host:pid. The server calls a second worker of the same name `name#2`.
        timeout: seconds: the default timeout of every wait, and how long the client tries to reach the learner.
        token: the shared secret; None takes ECHO_TOKEN, ECHO_TOKEN_FILE or the user's token file. It is not pickled.
        auth: False connects without a token to a server that asks for none.
        table: the server's replay table that `example` describes and that gets the samples of `send`; None is its first table, or its stream.
        tables: `{name: example}` of further tables for `send(..., table=name)`. Each has its own connection, which is made at its first use.
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
            it to the version that it returns; set it yourself if the policy changes later. None means the version published last.

    All calls are thread-safe, take `timeout=` and can be interrupted by Ctrl-C. A client can be pickled, and the copy makes its own
    connection. After a fork, the child must make its own client.
    """

    def __init__(
        self,
        address: str | Address,
        example: Any,
        *,
        name: str | None = None,
        timeout: float = 30.0,
        token: tokens.Explicit = None,
        auth: bool = True,
        table: str | None = None,
        tables: Mapping[str, Any] | None = None,
        resolve: Resolver | None = None,
        weights: str | Address | None = None,
        **options: Any,
    ) -> None:
        check_real_threads()
        self.address = Address.parse(address)
        self.spec = example.wire if isinstance(example, Steps) else Spec.from_example(example)
        self._pickled = (type(self), str(self.address), example, {"name": name, "timeout": timeout, "auth": auth, **options})
        if table is not None:
            self._pickled[3]["table"] = options["table"] = table
        if tables:
            self._pickled[3]["tables"] = dict(tables)
        if resolve is not None:
            self._pickled[3]["resolve"] = resolve
        if weights is not None:
            self._pickled[3]["weights"] = str(weights)
        reached = reach(self.address, resolve, timeout)
        transport, options = reached.transport, {**options, **reached.options}

        # It must not refer to self, which keeps it: a dropped client would stay alive until the garbage collector runs.
        def connect(spec: Spec, *, address: Address = reached.address, **more: Any) -> Connection:
            secret = tokens.find_token(token) if auth else None
            made = transport.connect(address, spec, token=secret, **{"name": name or "", "timeout": timeout} | options | more)
            return returned(made, Connection, f"{address}: connect()")

        self._table, self._timeout = table, timeout
        self._first: str | None = None  # the name of the server's first table, once it was asked for
        self._held = Held()
        self._streams: StepStreams | None = None
        reasons = Reasons(connect, self.spec, timeout)
        self._others = OtherTables(connect, tables or {}, reasons)  # before a connection is made, which an invalid example would leave open
        if isinstance(example, Steps):
            client_id, labelled_from_start = str(options.get("client_id") or new_client_id()), False
            self._connection = connect(self.spec, client_id=client_id)  # type: ignore[arg-type]
        else:
            self._connection, labelled_from_start = _connection(connect, self.spec)
        self._weights_from = self._connection
        if weights is not None:
            try:
                self._weights_from = weights_connection(Address.parse(weights), name or "", timeout, tokens.find_token(token) if auth else None)
            except BaseException:
                self._connection.close(0)
                raise
        self._explained = ExplainedConnection(self._connection, reasons, table)
        if isinstance(example, Steps):
            self._streams = StepStreams(example, self._explained.send, self._explained.send_batch, client_id)
        self._requests = Requests(self._explained)
        self._serving = Serving(Requests(self._connection))
        self._unserved: weakref.finalize[..., Client] | None = None  # what ends `_serving` if the client is dropped
        self._labelled: dict[str | None, LabelledConnection] = {}  # by table; each is made when labels are first sent
        self._labelling = threading.Lock()
        self._connect, self._reasons = connect, reasons
        if labelled_from_start:
            self._labelled[None] = LabelledConnection(self._explained, self.spec, self._held)
        elif not tables and (table is None or self._streams is not None):
            # The methods are bound once, because one more Python call per sample would cost a third of a send.
            if self._streams is not None:
                sender = PlainSender(self, self._streams, True, None)
            else:
                sender = PlainSender(self, self._connection, False, self._explained.explain)
            self.send, self.send_batch = sender.send, sender.send_batch  # type: ignore[method-assign,assignment]

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

    def send(
        self,
        sample: Any,
        timeout: float | None = None,
        *,
        table: str | None = None,
        priority: float | None = None,
        policy_version: int | None = None,
        **step: Any,
    ) -> None:
        """Copy one sample for sending; its arrays may be changed as soon as this returns. An idle link sends it now, a busy one with others.

        Other threads run while a large sample is copied. If they write to its arrays, some of these writes are sent too. If they free its
        memory (`ndarray.resize(refcheck=False)`, closing a mapped file), the process crashes, as anywhere in numpy.

        Args:
            sample: a pytree like the example.
            timeout: seconds to wait while the window of unacknowledged samples is full; None is the client's default.
            table: one of `tables`; None, and its name, are the client's own table (the server's first one, unless the client was given another).
            priority: priority of the new item, finite and not negative; None lets the table's sampler choose.
            policy_version: version of the policy that made the sample; None takes the attribute `policy_version`.
            **step: `end` and `stream`, for a table of steps: see `StepStreams.send`.

        Raises:
            ValueError: the priority is negative, NaN or infinite, or the version is invalid; nothing was sent.
            SpecError: the sample does not match; the message names the leaf, and nothing was sent.
            EchoTimeoutError: the window of unacknowledged samples stayed full; the message says who waits for whom.
            ConnectionClosedError: the learner is gone for longer than `timeout`, or the client is closed.
            UnknownTableError: `table` is neither the client's own table nor one of `tables`.
        """
        if table is None and priority is None and policy_version is None and not step and self._streams is None and not self._labelled:
            return self._explained.send(sample, timeout)  # the most common case, at the least cost
        if (streams := self._steps(table)) is not None:
            if priority is not None or policy_version is not None:
                raise ConfigError("steps have no priority and no policy version; items get priorities by update_priorities()")
            return streams.send(sample, timeout, **step)
        if step:
            raise ConfigError(f"{', '.join(step)} belong to tables of steps: give the client Steps(example) as the table's example")
        sender = self._labels(table, priority is not None or policy_version is not None, timeout)
        if sender is not None:
            sender.send(sample, timeout, priority, policy_version)
        else:
            (self._explained if self._is_own(table) else self._others.connection(str(table))).send(sample, timeout)

    def send_batch(
        self,
        samples: Any,
        timeout: float | None = None,
        *,
        table: str | None = None,
        priorities: Any = None,
        policy_version: int | None = None,
        **steps: Any,
    ) -> None:
        """Copy N samples at once for sending: the same pytree with leaves of shape `(N, *leaf.shape)`, priorities of shape (N,), and one
        version for all of them. Raises the same errors as `send`; the message names a sample whose priority is invalid."""
        if (streams := self._steps(table)) is not None:
            if priorities is not None or policy_version is not None:
                raise ConfigError("steps have no priorities and no policy versions; items get priorities by update_priorities()")
            return streams.send_batch(samples, timeout, **steps)
        if steps:
            raise ConfigError(f"{', '.join(steps)} belong to tables of steps: give the client Steps(example) as the table's example")
        sender = self._labels(table, priorities is not None or policy_version is not None, timeout)
        if sender is not None:
            sender.send_batch(samples, timeout, priorities, policy_version)
        else:
            (self._explained if self._is_own(table) else self._others.connection(str(table))).send_batch(samples, timeout)

    def end_episode(
        self, end: str = "truncated", timeout: float | None = None, *, table: str | None = None, stream: int = 0
    ) -> None:
        """Mark the step that was sent last to a table of steps as the end of its episode: see `StepStreams.end_episode`.

        Raises:
            ConfigError: the table does not store steps. ValueError: `end` is invalid. It also raises the errors of `send`.
        """
        streams = self._steps(table)
        if streams is None:
            raise ConfigError("only tables of steps have episodes: give the client Steps(example) as the table's example")
        streams.end_episode(end, timeout, stream=stream)

    def _steps(self, table: str | None) -> StepStreams | None:
        """The object that sends to this table; None if the table does not store steps."""
        return self._streams if self._is_own(table) else self._others.streams(table)

    def _is_own(self, table: str | None) -> bool:
        """Whether this is the table of `example`. Without a name for it, it is the server's first table, whose name the server knows."""
        if table is None or table == self._table:
            return True
        if self._table is not None or table in self._others:
            return False
        if self._first is None:
            self._first = next(iter(self.request("tables")[0]), "")
        return table == self._first

    @property
    def policy_version(self) -> int | None:
        return self._held.version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        self._held.version = version

    def _labels(self, table: str | None, wanted: bool, timeout: float | None) -> LabelledConnection | None:
        """The object that sends labelled samples to this table; None while no label was sent and the table does not need labels."""
        name = None if self._is_own(table) else table
        sender = self._labelled.get(name)
        if sender is not None or (not wanted and name is None):
            return sender
        with self._labelling:
            sender = self._labelled.get(name)
            if sender is not None:
                return sender
            plain, spec = (self._explained, self.spec) if name is None else (self._others.connection(name), self._others.spec(name))
            if name is not None and self._others.labelled(name):  # the table needs labels
                sender = LabelledConnection(plain, spec, self._held)
            elif not wanted:
                return None
            else:
                plain.wait(timeout)  # samples that were sent without labels come first
                raw = self._connect(labelled(spec), table=(table or self._table or "") + SUFFIX, client_id="")
                other = ExplainedConnection(raw, self._reasons, table or self._table)
                self._others.add((table or self._table or "") + SUFFIX, other)
                sender = LabelledConnection(other, spec, self._held)
            self._labelled[name] = sender
            return sender

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
        if self._streams is not None:
            raise ConfigError("reserved slots have no order, and steps need one: use send()")
        slot = None if self._labelled else self._explained.reserve(timeout)  # with labels, the reserved row would need labels too
        return CopiedReservation(self.spec, self.send, timeout) if slot is None else slot

    def flush(self, timeout: float | None = None) -> None:
        """Pass all samples of `send` to the network now."""
        wait = self._wait(timeout)
        for connection in (self._explained, *self._others.open()):
            connection.flush(wait.left())

    def wait(self, timeout: float | None = None) -> None:
        """Return when all samples of `send` are committed in the learner's store."""
        wait = self._wait(timeout)
        for connection in (self._explained, *self._others.open()):
            connection.wait(wait.left())

    def _wait(self, timeout: float | None) -> Wait:
        """The time of one call, which its connections share."""
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
        if name is None or self._is_own(name):
            step = None if self._streams is None else self._streams.step
            return remote_table(self._requests, self.spec, self._table, self._timeout, step)
        return remote_table(self._requests, self._others.spec(name), name, self._timeout, self._others.step(name))

    def sample(
        self, n: int, timeout: float | None = None, *, table: str | None = None, beta: float | None = None
    ) -> RemoteSample:
        """Draw n items of a replay table, for a learner in another process than the server's; see `RemoteTable.sample`."""
        return self.table(table).sample(n, timeout, beta)

    def sample_mixture(
        self, shares: Mapping[str, float], n: int, timeout: float | None = None, *, beta: float | None = None
    ) -> mixture.MixedSample:
        """Draw one batch of n from several replay tables of the same spec; see `Server.sample_mixture`. The client needs their examples."""
        counts = mixture.shares_of(shares, n)
        mixed = mixture.draw({name: self.table(name) for name in counts}, counts, timeout, beta)
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
        """
        weights = self._weights_from.weights(timeout, newer_than, like)
        self.policy_version = weights.version
        return weights

    # ---- looking, and the end ---------------------------------------------------------------------------------------------

    def request(
        self, op: str, body: dict[str, Any] | None = None, blob: bytes = b"", timeout: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Request an operation of the server by name, and wait for its answer `(body, blob)`. Raises EchoError with the server's message."""
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
        self._serving.add(op, handler, concurrency)
        if self._unserved is None:
            self._unserved = weakref.finalize(self, abandoned, self._serving, self._connection)
            self._unserved.atexit = False

    def server_stats(self, timeout: float | None = None) -> dict[str, Any]:
        """`Server.stats()` of the learner."""
        return self.request("stats", timeout=timeout)[0]

    def stats(self) -> dict[str, Any]:
        """The counters of this connection, as a flat dict. Those of the weights are those of the connection that `weights()` uses."""
        stats = self._connection.stats()
        if self._weights_from is not self._connection:
            stats.update((name, value) for name, value in self._weights_from.stats().items() if name.startswith("weights_"))
        return stats

    @property
    def unacknowledged(self) -> int:
        """The number of samples of `send` that are not committed yet, over all tables."""
        return sum(connection.stats()["unacknowledged"] for connection in (self._connection, *self._others.open()))

    def close(self, timeout: float | None = None) -> None:
        """Deliver all samples of `send`, then close, within `timeout` seconds in all (None: the client's default). Idempotent.

        Raises:
            EchoTimeoutError, ConnectionClosedError: the message says how many samples were not acknowledged. The client is closed anyway.
                If Ctrl-C interrupts this call, the client is closed at once, and the next call raises the error if samples are lost.
        """
        self._serving.stop()
        try:
            others = () if self._weights_from is self._connection else (self._weights_from,)
            close_all((*self._others.open(), *others, self._explained), self._wait(timeout).timeout)
        finally:
            self._serving.join()
            if self._unserved is not None:
                self._unserved.detach()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        try:  # the block's own error is more important than undelivered samples
            self.close(0 if issubclass(kind, KeyboardInterrupt) else None)
        except (ConnectionError, TimeoutError):
            pass

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnect, self._pickled

    def __repr__(self) -> str:
        return f"<Client {self.address}>"


def _connection(connect: Callable[..., Connection], spec: Spec) -> tuple[Connection, bool]:
    """A connection, and whether it carries labels, because its table keeps policy versions."""
    try:
        return connect(spec), False
    except UnlabelledError:
        return connect(labelled(spec)), True


def _reconnect(cls: type[Client], address: str, example: Any, options: dict[str, Any]) -> Client:
    client = cls.__new__(cls)
    Client.__init__(client, address, example, **options)
    return client
