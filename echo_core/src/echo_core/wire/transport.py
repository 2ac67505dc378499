"""The contract of transports: everything that Echo requires of a way for bytes to travel.

A `Transport` has two ends. Its *listener* runs in the learner's process and puts samples into a
`sink`; its *connection* runs in a worker. Samples travel up and are acknowledged once they are in
the learner's store. Weights travel down and are confirmed by a receipt. Small control messages travel
both ways. Each end also counts what it does.

A transport over a reliable byte stream needs less code: `echo_net.channel` implements
everything below over an object that can send and receive bytes. See also docs/plugins/transport.md.

Duties of every transport
-------------------------
1. **Nothing before the handshake.** Both ends run `echo_net.handshake` (or its equal): protocol
   version, role, authentication, spec. A mismatch is an error at both ends that names the leaf.
2. **An acknowledgement means committed.** A sample is acknowledged only after `slot.commit()`.
   The worker keeps samples that are not acknowledged and sends them again after a reconnect. The
   learner drops those that it already has: nothing acknowledged is lost, nothing is inserted twice.
3. **A slow sender never holds a slot.** A sample is staged outside the store until it is whole.
4. **Backpressure reaches exactly the client that causes it.** One slow, stalled or broken peer
   never delays another one.
5. **Weights arrive as a whole or not at all.** The latest version wins, versions may be skipped, no
   version is ever torn, and publishing never stalls experience.
6. **Sizes are checked before memory is allocated**, and errors travel as text, never as objects.

Threading
---------
Every method of every class here may be called from any thread at any time, concurrently, except
that `close()` may cut other calls short with `ClosedError`. Samples of one thread keep their
order; samples of several threads interleave as whole samples. Sink methods may be called from any
thread of the transport. A thread that holds a lock which `publish()` or `close()` takes must not
call `sink.connected`, `sink.lost`, `sink.control` or `sink.receipt`.

Waiting
-------
`timeout` is in seconds. None means the object's default (option `timeout`, 30 s), `math.inf`
waits for ever, and 0 tries once. A wait sleeps in the kernel without the GIL, reacts to Ctrl-C within
100 ms, and logs one line on the logger `echo` once it has taken a few seconds. When the time is over,
it raises an error that says who waits for whom: a worker's call without a connection
`ConnectionClosedError`, every other one, and the first dial, `EchoTimeoutError`.

Errors
------
* `SpecError`: a sample or the peer's spec differs; the message names the leaf.
* `SecurityError`: a token is wrong, or an address would be exposed.
* `HandshakeRefused`: the other end refused the connection (`.code`).
* `ProtocolError`: the other end broke the wire format.
* `JobEnded`: the learner has ended the job. Every later call but `stats` raises it at once, and `ended` is true.
* `ConnectionClosedError`: the other end is gone for good, or the time of a wait is over without a connection.
* `EchoTimeoutError`: the time of a wait is over.
* `ClosedError`: the object was used after its `close()`.
* `ForkError`: a connection that was made before a fork was used in the child.
* `ConfigError`: an option is unknown or unusable.

A call that raises has not taken its sample: calling it again sends the sample once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ..base.address import refuse_host_and_port
from ..base.errors import ConfigError, EchoError, PluginError
from ..base.option_reader import Text, build_options, fault_of_options, option_fields
from ..base.returned import without_init
from ..base.transport_options import ConnectOptions, ListenOptions
from ..store.store_memory import StoreMemory
from .peer import Peer
from .weights import PACKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from ..base.address import Address
    from ..spec.spec import Spec
    from .protocol import Buffer
    from .reservation import Reservation
    from .sink import Sink
    from .weights import PackedWeights, Weights

__all__ = ["ConnectOptions", "Connection", "Finding", "ListenOptions", "Listener", "Pending", "Transport"]

Pending = Callable[..., "tuple[dict[str, Any], Buffer]"]  # waits for the answer to a sent request, for at most the given seconds


def _shown(address: Address) -> Address:
    """The address for messages, with any token in it hidden."""
    return replace(address, options={name: "..." if name == "token" else value for name, value in address.options.items()})


def _texts(address: Address) -> dict[str, Any]:
    return {name: Text(value) for name, value in address.options.items()}


class Finding(NamedTuple):
    """One line of `echoctl doctor`."""

    status: Literal["ok", "warning", "failure"]
    what: str  # the thing that was checked
    found: str
    fix: str = ""  # the remedy, if something is wrong


class Transport(ABC):
    """One way for samples, weights and control messages to travel.

    A subclass sets `scheme` (the text before `://`, which is also the entry point's name) and its two
    option classes, and implements `listen` and `connect`.
    """

    scheme: ClassVar[str]
    Options: ClassVar[type] = ListenOptions
    ConnectOptions: ClassVar[type] = ConnectOptions
    store_memory: StoreMemory | None = None  # None: the store may lie in private memory

    def __init__(self, **options: Any) -> None:
        """Check `options` against `Options`; nothing is opened yet. Raises ConfigError, and PluginError like `check_class`."""
        self.check_class()
        self.options: Any = build_options(self.Options, options, self.scheme)

    if not TYPE_CHECKING:  # a type checker would take every attribute for known

        def __getattr__(self, name: str) -> Any:
            return without_init(self, name)

    @classmethod
    def check_class(cls) -> None:
        """Check what a subclass has to declare. Raises PluginError, which names what is missing and how to add it."""
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise PluginError(f"{cls.__name__} lacks {', '.join(f'{name}()' for name in missing)}; define what is missing, as its base class describes it")
        if not isinstance(getattr(cls, "scheme", None), str):
            raise PluginError(f'{cls.__name__} has no scheme; add scheme = "NAME" to it, with the name of its entry point')
        for name, base in (("Options", ListenOptions), ("ConnectOptions", ConnectOptions)):
            if fault := fault_of_options(cls, name, base):
                raise PluginError(fault)

    @classmethod
    def at(cls, address: Address, **options: Any) -> Transport:
        """A transport that will listen at `address`. Host, port and path become the options of these
        names, the text behind `?` gives the other options, and `options` win over both.

        Raises:
            ConfigError: like the constructor, and also if the address gives an option twice.
        """
        place = {"host": address.host, "port": address.port, "path": address.path}
        given = {name: value for name, value in place.items() if value not in ("", None)}
        if twice := given.keys() & address.options.keys():
            raise ConfigError(f"option {min(twice)!r} of {_shown(address)} is given twice: before the '?' and behind it; leave one out")
        return cls(**given | _texts(address) | options)

    @classmethod
    def connect_options(cls, address: Address, options: dict[str, Any]) -> Any:
        """The `ConnectOptions` of `connect`'s arguments; keywords win over what follows the `?`.

        Raises:
            ConfigError: an option is unknown or unusable, or a token follows the `?`.
        """
        if "token" in address.options:
            raise ConfigError(f"the token in {_shown(address)} would be shown wherever the address is; set ECHO_TOKEN or ECHO_TOKEN_FILE, or give token=")
        if "resolve" in address.options:
            raise ConfigError(f"resolve in {_shown(address)} is no text but a function; give it in code: Client(..., resolve=...)")
        if "connect_timeout" in address.options:
            raise ConfigError(f"connect_timeout in {_shown(address)}: a client connects within its timeout; give that one")
        known = option_fields(cls.ConnectOptions)
        refuse_host_and_port("Client", "address=", address, *(None if name in known else options.get(name) for name in ("host", "port")))
        return build_options(cls.ConnectOptions, _texts(address) | options, cls.scheme)

    @abstractmethod
    def listen(self, sink: Sink) -> Listener:
        """Open the learner's end, and start threads that serve clients and put their samples into `sink`.

        It returns once clients can connect. Raises OSError with the address in its text if the address
        cannot be bound, and SecurityError if it would be exposed without authentication.
        """

    @classmethod
    @abstractmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        """Open the worker's end; returns after the handshake.

        If the learner is not there yet, or answers "busy", "shutdown" or "ended", it is tried again with backoff
        until `connect_seconds` of the options are over. Then EchoTimeoutError with the last reason is raised, or that HandshakeRefused.
        SpecError, SecurityError, ProtocolError and any other HandshakeRefused are raised at once.
        """

    @classmethod
    def findings(cls) -> Iterable[Finding]:
        """For `echoctl doctor`: which features of this machine help or hinder the transport, and what it chose in this process. It opens nothing.

        If it raises, the exception's text is shown as a failure.
        """
        return ()

    @classmethod
    def describe(cls) -> dict[str, str]:
        """Its findings without a verdict but with the remedy, for `echoctl plugins show`: `{"what": "finding"}`."""
        return {finding.what: " ".join(filter(None, (finding.found, finding.fix))) for finding in cls.findings()}


class Listener(ABC):
    """The learner's end: serves many clients until closed."""

    address: Address  # where clients connect, with the actual port

    @abstractmethod
    def publish(self, weights: PackedWeights) -> None:
        """Offer `weights` to all present and future subscribers; returns at once.

        A subscriber gets the newest version when it has confirmed the previous one; versions in between
        are never sent. `sink.receipt` reports its receipts. The server calls this in order, so the last call always has the newest weights,
        also if their number is not above the one before: a server that takes its weights from a learner passes on what a restarted one
        counts anew.
        """

    def withdraw(self) -> None:  # noqa: B027
        """The server is about to pack other weights: offer nothing until the next `publish`, and drop every reference to the present weights
        that no subscriber needs whom they are being sent to. Then their memory is free before the next ones take as much. This default
        implementation does nothing, so that both are in memory for a moment."""

    def weights_memory(self, count: int) -> np.ndarray | None:
        """A uint8 array of `count` bytes that begins at a page, with undefined contents. The next weights should be packed into it, because
        this listener's clients read them there; None: any memory will do. The version uses the array as long as anything refers to it."""
        return None

    @abstractmethod
    def peers(self) -> list[Peer]:
        """The connected clients (the same `Peer` objects that `sink.connected` got)."""

    @abstractmethod
    def stats(self) -> dict[str, float | int]:
        """Flat counters since `listen`: at least connections_total, active_connections,
        samples, duplicates, bytes_received, bytes_sent, refused, protocol_errors."""

    @abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Commit samples that have arrived completely, send BYE to every client, free the address, and join
        every thread. Idempotent. If the time runs out, the rest is closed hard and nothing is raised. It takes less than
        `timeout` + 1 s."""

    def drain(self, timeout: float | None = None) -> None:
        """As `close`, but clients are told that the learner is draining: another one may take its place. This default implementation closes."""
        self.close(timeout)

    def end_job(self, timeout: float | None = None) -> None:
        """As `close`, but clients are told that the job has ended, and do not connect again: see `wire.protocol.Farewell`. This default implementation
        closes, and clients then try to connect again until their `timeout` is over."""
        self.close(timeout)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Connection(ABC):
    """The worker's end: one session with one learner, across reconnects."""

    @property
    def takes_labels(self) -> bool:
        """Whether samples of this connection may have labels (labels.py): the learner said so in the handshake. This default implementation
        says no, and then the labels of the methods below are always None."""
        return False

    @abstractmethod
    def send(self, sample: Any, timeout: float | None = None, label: bytes | None = None) -> None:
        """Take one sample. It is copied, so its arrays may be changed at once. Waits while the window of
        unacknowledged samples is full. `label`: its labels, 16 bytes, or None."""

    @abstractmethod
    def send_batch(self, samples: Any, timeout: float | None = None, labels: bytes | None = None) -> None:
        """Take N samples at once: the tree of `send`, with every leaf of shape (N, *leaf.shape). It takes
        all or none: it waits for room for the whole batch (a batch that is larger than the window waits
        for an empty window). N = 0 does nothing. `labels`: their labels, 16 bytes each, or None."""

    def reserve(self, timeout: float | None = None, label: bytes | None = None) -> Reservation | None:
        """Memory for one sample, to be filled in place and sent without a copy: see `Client.reserve`. None: the transport cannot lend
        memory, so the client lends its own, which `send` copies. `label`: as in `send`."""
        return None

    @abstractmethod
    def flush(self, timeout: float | None = None) -> None:
        """Pass all samples taken so far to the network."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> None:
        """Return when all samples taken so far are acknowledged."""

    @abstractmethod
    def weights(
        self, timeout: float | None = None, newer_than: int | None = None, like: Any = None
    ) -> Weights:
        """The newest complete version; waits for one with version > `newer_than` (None: any version).
        `like` is an example tree for structures that JSON cannot carry; pass it on to `unpack`."""

    def packed_weights(self, timeout: float | None = None, newer_than: int | None = None) -> PackedWeights:
        """As `weights`, but as they were published, to be passed on. This default implementation works with every transport whose
        `weights` passes `like` on to `unpack`."""
        packed: PackedWeights = self.weights(timeout, newer_than, PACKED).params
        return packed

    @abstractmethod
    def request(
        self, op: str, body: dict[str, Any], blob: bytes = b"", timeout: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request to the learner and return its answer (body, blob). In each direction, JSON and blob
        have at most 1 MiB together. An error on the learner's side is raised here as EchoError with its text."""

    def ask(self, op: str, body: dict[str, Any], blob: bytes = b"") -> Pending:
        """The first half of `request`, so that several requests can be under way: send it, and return a function that waits for the answer.

        Call that function once, with a timeout; the blob that it returns may be any bytes-like object. This default implementation works
        with every transport, and sends the request only when that function is called.
        """
        return partial(self.request, op, body, blob)

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Flat counters: at least samples, bytes_sent, acknowledged, unacknowledged, reconnects,
        learner_restarts, connected, weights_version, send_blocked."""

    @property
    def ended(self) -> bool:
        """Whether the learner has ended the job. This default implementation never knows it."""
        return False

    @abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Deliver all taken samples, send BYE, and release everything. Idempotent. Raises
        EchoTimeoutError or ConnectionClosedError with the number of samples that were not acknowledged;
        the connection is closed even then. If Ctrl-C ended it, the next call raises that error. After the end of the job it raises JobEnded
        if samples were not acknowledged and no call has raised JobEnded before."""

    def leftovers(self) -> Sequence[tuple[int, Buffer, bool]]:
        """The samples that were taken and are not acknowledged, oldest first, after `close` has returned or raised: parts of
        `(count, payload, labelled)`. A payload has, for each leaf, that leaf of all its samples; if it is `labelled`, their labels come last,
        16 bytes each (all ones: it has none). Every call returns the same. This default implementation raises EchoError.
        """
        raise EchoError(f"{type(self).__name__} cannot hand out samples that were not delivered; its transport lacks leftovers()")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
