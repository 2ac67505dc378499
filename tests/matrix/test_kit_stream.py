"""The clauses about a path that treats bytes badly: they catch transports that forget what a short write has left, or that take damaged bytes."""

from __future__ import annotations

import select
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from echo_core.base.address import Address
from echo_core.base.transport_options import ListenOptions
from echo_core.plugins import discovery
from echo_core.plugins.discovery import transport_class
from echo_net.channel import Acceptor, Channel, ChannelTransport
from echo_testing import Capabilities, TransportContract
from echo_testing.rig import Rig

pytestmark = pytest.mark.needs("echo-samplers")

forgetful: set[str] = set()  # the ends, "worker" or "learner", that send what fits and forget the rest
writes: Counter[tuple[str, str]] = Counter()  # by end, and how a write went: whole, short or refused


class PlainChannel(Channel):
    """A writer finds out at once how much has room, as with every socket that does not block."""

    def __init__(self, sock: socket.socket, end: str) -> None:
        self.sock, self.end, self.peer = sock, end, "somebody"

    def send(self, buffers: Sequence[Any]) -> None:
        for buffer in buffers:
            left = memoryview(buffer).cast("B")
            while len(left):
                sent = self.send_some(left)
                if self.end in forgetful:
                    break
                if not sent:
                    select.select([], [self.sock], [])
                left = left[sent:]

    def send_some(self, data: memoryview) -> int:
        try:
            sent = self.sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        writes[self.end, "whole" if sent == len(data) else "short" if sent else "refused"] += 1
        return sent

    def recv_into(self, buffer: memoryview) -> int:
        return self.sock.recv_into(buffer)

    def shutdown(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()


class PlainAcceptor(Acceptor):
    def __init__(self) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.address = Address("plain", *self.sock.getsockname())

    def accept(self) -> Channel:
        return PlainChannel(self.sock.accept()[0], "learner")

    def shutdown(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()


@dataclass(frozen=True, kw_only=True)
class PlainOptions(ListenOptions):
    host: str = "127.0.0.1"
    port: int = 0


class PlainTransport(ChannelTransport):
    scheme = "plain"
    Options = PlainOptions

    def bind(self) -> Acceptor:
        return PlainAcceptor()

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        sock = socket.create_connection(address.endpoint, timeout=timeout)
        sock.settimeout(None)
        return PlainChannel(sock, "worker")


class Plain(TransportContract):
    def transport(self, **options: Any) -> Any:
        return PlainTransport(**options)


class TcpThatChecksNothing(TransportContract):
    capabilities = Capabilities(damage_proof=True)

    def transport(self, **options: Any) -> Any:
        return transport_class("tcp")(port=0, **options)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(discovery, "transport_class", lambda scheme: PlainTransport if scheme == "plain" else transport_class(scheme))
    monkeypatch.setenv("ECHO_TOKEN", "the-token-of-this-test-which-is-long-enough")
    writes.clear()
    yield
    forgetful.clear()


def run(contract: TransportContract, clause: str, scratch: Path) -> None:
    contract.scratch = scratch
    rig = Rig(contract)
    try:
        getattr(contract, clause)(rig, lambda capability: None)
    finally:
        rig.end()


def test_both_ends_are_made_to_write_too_little(tmp_path: Path) -> None:
    run(Plain(), "test_short_writes_lose_nothing", tmp_path)
    assert all(writes[end, how] > 2 for end in ("worker", "learner") for how in ("short", "refused")), writes


@pytest.mark.parametrize("end", ["worker", "learner"])
def test_a_transport_that_forgets_what_a_short_write_left_is_caught(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_testing.rig.PATIENCE", 3.0)
    forgetful.add(end)
    with pytest.raises((AssertionError, TimeoutError)):
        run(Plain(), "test_short_writes_lose_nothing", tmp_path)
    assert writes[end, "short"] > 0


@pytest.mark.needs("echo-tcp")
def test_a_transport_that_takes_damaged_bytes_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_testing.rig.PATIENCE", 3.0)
    with pytest.raises(AssertionError, match="torn"):
        run(TcpThatChecksNothing(), "test_damaged_bytes_reach_no_store", tmp_path)
