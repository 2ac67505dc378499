"""What a transport is: the whole contract between Echo and a way for bytes to travel.

A `Transport` has two ends. Its *listener* lives beside the learner and puts what arrives into a
`sink`; its *connection* lives in a worker. Four flows cross both: samples go up and are
acknowledged once they lie in the learner's store, weights go down and come back as a receipt,
small control messages go both ways, and each end can count what it did.

Writing one over a reliable byte stream means writing less than this: see `echo_core.wire.channel`,
which implements everything below over an object that can send and receive bytes, and
docs/plugins/transport.md.

Duties of every transport
-------------------------
1. **Nothing before the handshake.** Both ends run `echo_core.wire.handshake` (or its equal): protocol
   version, role, authentication, spec. A mismatch is an error at both ends that names the leaf.
2. **An acknowledgement means committed.** A sample is acknowledged only after `slot.commit()`.
   What is not acknowledged is kept by the worker, sent again after a reconnect, and dropped by
   the learner if it had it already: nothing acknowledged is lost, nothing is inserted twice.
3. **A slow sender never holds a slot.** A sample is staged outside the store until it is whole.
4. **Backpressure reaches exactly the client that causes it.** One slow, stalled or broken peer
   never delays another.
5. **Weights are whole or not there.** Latest wins, versions may be skipped, none is ever torn,
   and publishing never stalls experience.
6. **Sizes are checked before memory is allocated**, and errors travel as text, never as objects.

Threading
---------
Every method of every class here may be called from any thread at any time, concurrently, except
that `close()` may cut other calls short with `ClosedError`. Samples of one thread keep their
order; samples of several threads interleave whole. Sink methods may be called from any thread of
the transport; callbacks (`sink.connected`, `sink.lost`, `sink.control`, `sink.receipt`) must not
be made while holding a lock that `publish()` or `close()` takes.

Waiting
-------
`timeout` is in seconds. None means the object's default (option `timeout`, 30 s), `math.inf`
waits for ever, 0 tries once. A wait sleeps in the kernel without the GIL, answers Ctrl-C within
100 ms, logs one line on the logger `echo` once it has taken a few seconds, and when it runs out
raises `EchoTimeoutError` saying who waits for whom.

Errors
------
`SpecError` a sample or the peer's spec differs, naming the leaf · `SecurityError` token or
exposure · `HandshakeRefused` the other end said no (`.code`) · `ProtocolError` the other end
broke the wire format · `ConnectionClosedError` the other end is gone for good ·
`EchoTimeoutError` · `ClosedError` use after close · `ForkError` use in a forked child of a
connection made before the fork · `ConfigError` an option is unknown or unusable. A call that
raises has not taken its sample: calling it again sends it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from ..base.errors import ConfigError
from ..base.option_reader import Text, build_options
from ..base.transport_options import ConnectOptions, ListenOptions
from ..store.store_memory import StoreMemory
from .peer import Peer

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from ..base.address import Address
    from ..spec.spec import Spec
    from .protocol import Buffer
    from .reservation import Reservation
    from .sink import Sink
    from .weights import PackedWeights, Weights

__all__ = ["ConnectOptions", "Connection", "Finding", "ListenOptions", "Listener", "Pending", "Transport"]

Pending = Callable[..., "tuple[dict[str, Any], Buffer]"]  # of a request that was sent: waits for the answer, at most the given seconds


def _shown(address: Address) -> Address:
    """For people: without what a token in it says."""
    return replace(address, options={name: "..." if name == "token" else value for name, value in address.options.items()})


def _texts(address: Address) -> dict[str, Any]:
    return {name: Text(value) for name, value in address.options.items()}


class Finding(NamedTuple):
    """One line of `echoctl doctor`."""

    status: Literal["ok", "warning", "failure"]
    what: str  # was looked at
    found: str
    fix: str = ""  # the thing to do, unless all is well


class Transport(ABC):
    """One way for samples, weights and control messages to travel.

    A subclass sets `scheme` (what stands before `://`, and the entry point's name), its two
    option classes, and implements `listen` and `connect`.
    """

    scheme: ClassVar[str]
    Options: ClassVar[type] = ListenOptions
    ConnectOptions: ClassVar[type] = ConnectOptions
    store_memory: StoreMemory | None = None  # None: the store may lie in private memory

    def __init__(self, **options: Any) -> None:
        """Check `options` against `Options`; nothing is opened yet. Raises ConfigError."""
        self.options: Any = build_options(self.Options, options, self.scheme)

    @classmethod
    def at(cls, address: Address, **options: Any) -> Transport:
        """A transport that will listen at `address`: its host, port and path become the options
        of these names, what follows its `?` the others, and `options` win over both.

        Raises:
            ConfigError: as the constructor, and for what the address says twice.
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
        return build_options(cls.ConnectOptions, _texts(address) | options, cls.scheme)

    @abstractmethod
    def listen(self, sink: Sink) -> Listener:
        """Open the learner's end and start serving clients into `sink` on threads of its own.

        Returns once clients can connect. Raises OSError with the address in its text when the
        address cannot be taken, SecurityError when it would be exposed without authentication.
        """

    @classmethod
    @abstractmethod
    def connect(cls, address: Address, spec: Spec, **options: Any) -> Connection:
        """Open the worker's end; returns after the handshake.

        A learner that is not there yet, or says "busy" or "shutdown", is tried again with backoff
        until `timeout`: then EchoTimeoutError with the last reason, or that HandshakeRefused.
        Raises SpecError, SecurityError, ProtocolError and any other HandshakeRefused at once.
        """

    @classmethod
    def findings(cls) -> Iterable[Finding]:
        """For `echoctl doctor`: what of this machine helps it or gets in its way, and what it chose in this process; opens nothing.

        An exception's text is a failure.
        """
        return ()

    @classmethod
    def describe(cls) -> dict[str, str]:
        """Its findings without a verdict but with the remedy, as `echoctl plugins show` prints them: `{"what": "finding"}`."""
        return {finding.what: " ".join(filter(None, (finding.found, finding.fix))) for finding in cls.findings()}


class Listener(ABC):
    """The learner's end: serves many clients until closed."""

    address: Address  # where clients connect, with the port that was really taken

    @abstractmethod
    def publish(self, weights: PackedWeights) -> None:
        """Offer `weights` to every subscriber, now and as they come; returns at once.

        A subscriber is sent the newest version when it has confirmed the one before; versions
        in between are never sent. Its receipt is reported by `sink.receipt`.
        """

    def weights_memory(self, count: int) -> np.ndarray | None:
        """A uint8 array of `count` bytes from the beginning of a page, contents undefined, into which the next weights should be
        packed, because this listener's clients read them there; None: anywhere. It is the version's for as long as anything refers to it."""
        return None

    @abstractmethod
    def peers(self) -> list[Peer]:
        """The clients connected now (the same `Peer` objects `sink.connected` was given)."""

    @abstractmethod
    def stats(self) -> dict[str, float | int]:
        """Flat counters since `listen`: at least connections_total, active_connections,
        samples, duplicates, bytes_received, bytes_sent, refused, protocol_errors."""

    @abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Commit what has arrived whole, say BYE to every client, free the address, join every
        thread. Idempotent. Running out of time closes the rest hard rather than raising."""

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Connection(ABC):
    """The worker's end: one session with one learner, across reconnects."""

    @abstractmethod
    def send(self, sample: Any, timeout: float | None = None) -> None:
        """Take over one sample (copied: its arrays may be changed at once). Waits while the
        window of unacknowledged samples is full."""

    @abstractmethod
    def send_batch(self, samples: Any, timeout: float | None = None) -> None:
        """Take over N samples at once: the tree of `send`, every leaf of shape (N, *leaf.shape).
        All or nothing: waits for room for the whole batch (one larger than the window waits for
        an empty window). N = 0 does nothing."""

    def reserve(self, timeout: float | None = None) -> Reservation | None:
        """Memory for one sample, to be filled in place and sent without a copy: see `Client.reserve`. None: there is none to lend, and
        what the client lends instead is copied by `send`."""
        return None

    @abstractmethod
    def flush(self, timeout: float | None = None) -> None:
        """Hand everything taken over so far to the network."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> None:
        """Return when everything taken over so far is acknowledged."""

    @abstractmethod
    def weights(
        self, timeout: float | None = None, newer_than: int | None = None, like: Any = None
    ) -> Weights:
        """The newest whole version; waits for one with version > `newer_than` (None: any).
        `like` is an example tree for structures JSON cannot carry."""

    @abstractmethod
    def request(
        self, op: str, body: dict[str, Any], blob: bytes = b"", timeout: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Ask the learner and return its answer (body, blob). Both ways at most 1 MiB together.
        An error on the learner's side is raised here as EchoError with its text."""

    def ask(self, op: str, body: dict[str, Any], blob: bytes = b"") -> Pending:
        """`request` in two halves, so that several can be under way: send it, and be given what waits for the answer when it is called,
        once, with a timeout. The blob it returns may be any bytes-like object. Here it is sent only then, as every transport can."""
        return partial(self.request, op, body, blob)

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Flat counters: at least samples, bytes_sent, acknowledged, unacknowledged, reconnects,
        learner_restarts, connected, weights_version, send_blocked."""

    @abstractmethod
    def close(self, timeout: float | None = None) -> None:
        """Deliver what was taken over, say BYE, release everything. Idempotent. Raises
        EchoTimeoutError or ConnectionClosedError saying how many samples were not acknowledged;
        the connection is closed even then."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
