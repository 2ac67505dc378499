"""A UCX endpoint as a channel of bytes, and the acceptor of clients."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from echo_core.base.address import Address, is_loopback_host
from echo_core.base.errors import ConfigError, ListenError
from echo_core.wire.protocol import Buffer
from echo_net.channel import Acceptor, Channel
from echo_net.network.listening import found_by_trying

from . import _ucx, lanes, library
from .carrier import interface_without_carrier

if TYPE_CHECKING:
    from .options import RdmaConnectOptions, RdmaListenOptions

__all__ = ["RdmaAcceptor", "RdmaChannel", "dial"]

log = logging.getLogger("echo")

LINGER_SECONDS = 1.0  # after shutdown, a peer that reads slowly has so long to take the bytes that were sent
LISTENER_LINGER_SECONDS = 0.5  # the same for a learner, whose close(timeout=0) takes as long
NO_DEVICE = "No such device"  # UCX's words if an interface that its context has opened no longer exists
PROBE_SECONDS = 3.0  # for a look at an address that UCX could not reach
STOP_SECONDS = 5.0  # when the learner closes, an engine that was replaced has so long to end


class RdmaChannel(Channel):
    """See `echo_net.channel.Channel`.

    Attributes:
        wire: the endpoint.
        lanes: the lanes that carry it; known after something was received.
        endpoint: at a worker's end: host and port of the learner.
        refusal: at the learner's end: makes the bytes that tell a client why it is turned away.
    """

    refusal: Callable[[str], bytes] | None = None
    endpoint: tuple[str, int] | None = None

    def __init__(self, wire: _ucx.Wire, engine: _ucx.Engine | None, peer: str, require_rdma: bool) -> None:
        self.peer = peer
        self.wire = wire
        self.lanes: tuple[str, ...] = ()
        self._own_engine = engine
        self._require_rdma = require_rdma
        self._rest = memoryview(b"")
        self._connected = False

    def send(self, buffers: Sequence[Buffer]) -> None:
        with self._telling_why_unreachable():
            self.wire.send(buffers)

    def receive(self) -> Buffer:
        if self._rest:
            rest, self._rest = self._rest, memoryview(b"")
            return rest
        with self._telling_why_unreachable():
            piece = self.wire.receive()
        if not self._connected and piece:
            self._connected = True
            self._look_at_lanes()
        return piece

    @contextmanager
    def _telling_why_unreachable(self) -> Iterator[None]:
        """UCX reports that it cannot reach the learner at whichever call comes next: sending or receiving."""
        try:
            yield
        except OSError as error:
            if not self._connected and "unreachable" in str(error) and _accepts(self.endpoint):
                raise OSError(
                    errno.EHOSTUNREACH,
                    f"{error}, although something accepts connections at {self.peer}: UCX cannot reach the learner's own address from"
                    " here, as behind a NAT, a forwarded port or a proxy, which rdma:// cannot pass; use tcp:// or tcps:// there",
                ) from error
            raise

    def _look_at_lanes(self) -> None:
        self.lanes = lanes.of(self.wire)
        if self._require_rdma and not any(map(lanes.is_rdma, self.lanes)):
            text = (
                f"require_rdma: UCX would reach {self.peer} by {', '.join(self.lanes) or lanes.UNNAMED}, which is no RDMA: {lanes.why_no_rdma()};"
                f" see that both ends have the system's UCX with verbs (`ucx_info -d` lists rc_mlx5, rc_verbs, dc_mlx5, ud_verbs ...) and"
                f" an active port (`ibv_devinfo`), and that UCX_TLS and UCX_NET_DEVICES allow it ({library.settings_shown() or 'not set'})."
                f" {library.memory_lock_advice()}"
            ).strip()
            if self.refusal is not None:
                self.wire.send([self.refusal(text)])
            raise ConfigError(text)
        lanes.note(self.peer, self.lanes)

    def recv_into(self, buffer: memoryview) -> int:
        piece = memoryview(self.receive())
        taken = min(len(piece), len(buffer))
        buffer[:taken] = piece[:taken]
        self._rest = piece[taken:]
        return taken

    def shutdown(self) -> None:
        self.wire.leave()

    def close(self) -> None:
        self.wire.leave()
        self.wire.release()
        if self._own_engine is not None:
            self._own_engine.stop()


def _accepts(endpoint: tuple[str, int] | None) -> bool:
    """Whether somebody accepts plain TCP connections there, as a learner does, or a NAT in front of it."""
    if endpoint is None:
        return False
    try:
        socket.create_connection(endpoint, PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def check_family(host: str) -> None:
    """Raises ConfigError for an IPv6 address. UCX (1.22) confuses it with the IPv4 addresses of its lanes, and writes past their memory."""
    if ":" in host:
        raise ConfigError(f"rdma:// and ucx:// go by IPv4, and {host!r} is not IPv4: give an IPv4 address (127.0.0.1, 0.0.0.0), or a name that has one")


def resolve(host: str, port: int) -> str:
    """`host` as an IPv4 address in numbers. Raises OSError if it is unknown."""
    return str(socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])


def engine(options: RdmaListenOptions | RdmaConnectOptions, listens: bool = False, context: _ucx.Context | None = None) -> _ucx.Engine:
    context, spin = context or library.context(), 1e9 if options.busy_poll else options.spin
    for last in (False, False, True):  # interfaces may come and go meanwhile
        try:
            with library.settings_of_listeners() if listens else nullcontext():
                return _ucx.Engine(context, spin, options.heartbeat, options.lease, LISTENER_LINGER_SECONDS if listens else LINGER_SECONDS)
        except OSError as error:
            if last or NO_DEVICE not in str(error):
                raise
            context = library.renewed(context)
    raise AssertionError("unreachable")


def dial(address: Address, options: RdmaConnectOptions, timeout: float) -> RdmaChannel:
    """Begin to connect to the learner. The handshake reports whether that works."""
    host, port = address.endpoint
    number = resolve(host, port)
    own = engine(options, context=library.context(is_loopback_host(number) and not options.require_rdma))
    try:
        wire = own.connect(number, port)
    except BaseException:
        own.stop()
        raise
    channel = RdmaChannel(wire, own, str(address), options.require_rdma)
    channel.endpoint = number, port
    return channel


class RdmaAcceptor(Acceptor):
    """See `echo_net.channel.Acceptor`. Raises OSError, which names the address, if the address cannot be taken.

    Attributes:
        restarts: how often the engine was stuck and was replaced.
    """

    def __init__(self, options: RdmaListenOptions, scheme: str) -> None:
        self._options = options
        self.restarts = 0
        self._lock = threading.Lock()  # guards the choice of the engine
        self._over = False
        self._stops: list[threading.Thread] = []  # threads that stop former engines
        local = is_loopback_host(options.host) and not options.require_rdma
        self._context = library.context(local)  # made once, so that a replacing engine has the same settings
        try:
            number = resolve(options.host, options.port)
        except OSError as error:
            raise ListenError(
                errno.EADDRNOTAVAIL, f"cannot listen on {options.host}:{options.port}: {error}; give an IPv4 address or name of this machine"
            ) from error
        self._engine = engine(options, listens=True, context=self._context)
        try:
            port = self._engine.listen(number, options.port)
        except OSError as error:
            self._engine.stop()
            raise found_by_trying(number, options.port, error) from error
        self.address = Address(scheme, options.host, port)
        if name := interface_without_carrier(number):
            log.warning(
                "%s listens on the interface %s, which has no carrier: no worker can connect. Check the cable and `ip link show %s`, and start the learner"
                " again once the interface is up",
                self.address,
                name,
                name,
            )

    def accept(self) -> RdmaChannel:
        while (wire := self._engine.accept()) is None:
            with self._lock:
                if self._over or not self._engine.stuck:
                    raise OSError(errno.ECANCELED, "closed")
                self._start_anew()
        return RdmaChannel(wire, None, wire.address, self._options.require_rdma)

    def _start_anew(self) -> None:
        """Replace a stuck engine by another one at the same port. Clients dial again, as after any loss. Raises OSError if the port is taken."""
        former, host, port = self._engine, self._options.host, self.address.endpoint[1]
        former.deafen()
        fresh = engine(self._options, listens=True, context=self._context)
        try:
            fresh.listen(resolve(host, port), port)
        except OSError:
            fresh.stop()
            raise
        self._engine = fresh
        self.restarts += 1
        log.warning(
            "%s: nothing has come through the shared memory of UCX for too long: a worker died or was stopped in the middle of a message, or all were"
            " stopped; it is started anew, and clients connect again",
            self.address,
        )
        self._stops = [stop for stop in self._stops if stop.is_alive()]
        # On a thread of its own, so that clients need not wait until the old engine has ended.
        stop = threading.Thread(target=former.stop, name="echo-rdma-stop", daemon=True)
        try:
            stop.start()
            self._stops.append(stop)
        except RuntimeError:  # no more threads
            former.stop()

    def shutdown(self) -> None:
        with self._lock:
            self._over = True
            self._engine.deafen()

    def close(self) -> None:
        pass  # `shutdown` has already freed the address

    def finish(self) -> None:
        """End every connection, and the thread."""
        self._engine.stop()
        for stop in self._stops:
            stop.join(STOP_SECONDS)
