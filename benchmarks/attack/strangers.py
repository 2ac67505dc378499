"""What strangers do at a learner's door, each in a process of its own: a function that does its worst until it is killed."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from benchmarks.payloads import PAYLOADS
from benchmarks.processes import allow_open_files, die_with_reader
from echo_core.wire.protocol import PROTOCOL_VERSION

HELLO = b"ECHO" + bytes([PROTOCOL_VERSION, 1, 0, 0])  # how a worker begins
PARALLEL = 200  # connections of an attack that holds them open
GARBAGE = (b"\0" * 64, HELLO + b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(512))

#: How a handshake begins, for those who never finish one.
BEGINNINGS = {
    "tcp": HELLO + b"\0\1\0\0" + b" " * 256,
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 256,
    **dict.fromkeys(("tcps", "grpcs"), b"\x16\x03\x01\x02\0\1\0\1\xfc\x03\x03" + b"\0" * 256),
}


def garbage(address: Any) -> NoReturn:
    """Connect, say something wrong, hang up; as often as possible."""
    while True:
        for said in GARBAGE:
            with suppress(OSError), socket.create_connection(address.endpoint, timeout=5) as sock:
                sock.sendall(said)


def attempts(address: Any) -> NoReturn:
    """Connect and give up, without waiting for anything: the most attempts that this machine makes."""
    while True:
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.connect_ex(address.endpoint)


def half_open(address: Any) -> NoReturn:
    """Connections that say nothing; each that is ended is made anew."""
    _hold(address, lambda sock: sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b"", 0.05)


def slow_loris(address: Any) -> NoReturn:
    """Handshakes that never come to an end: a byte now and then."""
    beginning = BEGINNINGS[address.scheme]
    said: dict[socket.socket, int] = {}

    def another_byte(sock: socket.socket) -> bool:
        said[sock] = said.get(sock, -1) + 1
        sock.sendall(beginning[said[sock] % len(beginning)].to_bytes(1, "big"))
        return True

    _hold(address, another_byte, 0.02)


def wrong_tokens(address: Any) -> NoReturn:
    """Whole handshakes that end with a wrong proof of the token."""
    _knock(address, lambda: secrets.token_hex(32))


def wrong_roles(address: Any) -> NoReturn:
    """Whole handshakes, and a good proof, of somebody who may read and would send."""
    reader = os.environ["ECHO_TOKEN"].splitlines()[1].removeprefix(READER)
    _knock(address, lambda: reader)


def expired_certificates(address: Any) -> NoReturn:
    """The right token, and a worker's certificate that was good once; `address` names it."""
    _knock(address, lambda: None)


def replays(address: Any) -> NoReturn:
    """Replay, byte for byte, the handshake of a worker that was let in."""
    from echo_core.base.errors import EchoError
    from echo_core.spec.spec import Spec
    from echo_net.handshake import ClientHandshake

    spec, token = Spec.from_example(PAYLOADS["20B"].example()), os.environ["ECHO_TOKEN"].splitlines()[0].encode()
    hello = proof = b""
    while not proof:
        handshake = ClientHandshake(spec, token, "ab" * 16)
        hello = handshake.start()
        with suppress(EchoError, OSError), closing(_Door(address)) as door:
            door.say(hello)
            proof = handshake.receive(door.hear())
    while True:
        with suppress(EchoError, OSError), closing(_Door(address)) as door:
            door.say(hello)
            door.hear()
            door.say(proof)
            while door.hear():
                pass


def downgrades(address: Any) -> NoReturn:
    """An older protocol, and a handshake without the proof that was asked for, in turn."""
    from echo_core.base.errors import EchoError
    from echo_core.wire.protocol import dump_json
    from echo_net.handshake.messages import MESSAGE

    def message(kind: int, version: int, **body: Any) -> bytes:
        text = dump_json(body)
        return MESSAGE.pack(b"ECHO", version, kind, 0, len(text)) + text

    who = {"client": "0" * 32, "role": "worker", "nonce": "1" * 64, "session": "5" * 32, "silence": 30.0, "base": 0}
    while True:
        for version in (1, 2):
            with suppress(EchoError, OSError), closing(_Door(address)) as door:
                door.say(message(1, version, **who))
                if version == 2:
                    door.hear()
                    door.say(message(3, version, mac=""))
                while door.hear():
                    pass


READER = "read:"  # in front of the second token of ECHO_TOKEN

ATTACKS: dict[str, Callable[[Any], NoReturn]] = {
    "garbage": garbage,
    "attempts": attempts,
    "half-open": half_open,
    "slow-loris": slow_loris,
    "wrong-tokens": wrong_tokens,
    "wrong-roles": wrong_roles,
    "replays": replays,
    "downgrades": downgrades,
}

#: Where workers show certificates.
CERTIFIED_ATTACKS = {**ATTACKS, "expired-certificates": expired_certificates}

#: Those that wait for no answer: a bare listener will do.
UNHEARING = ("garbage", "attempts", "half-open", "slow-loris")


def attack(says: Connection, name: str, address: str) -> NoReturn:
    """Say that it begins, and carry out an attack of `CERTIFIED_ATTACKS`."""
    from echo_core.base.address import Address
    from echo_core.plugins import discovery

    die_with_reader(says)
    aim = Address.parse(address)
    discovery.transport_class(aim.scheme)  # what takes long comes first
    says.send("begins")
    CERTIFIED_ATTACKS[name](aim)
    raise AssertionError("an attack does not end")


class _Door:
    """The bytes of a connection before any handshake of Echo's, TLS included."""

    def __init__(self, address: Any) -> None:
        from echo_core.plugins import discovery
        from echo_net.channel import ChannelTransport

        transport = discovery.transport_class(address.scheme)
        self._channel: Any = None
        self._buffer = memoryview(bytearray(65536))
        if issubclass(transport, ChannelTransport):
            self._channel = transport.dial(address, transport.connect_options(address, {}), 5)
            self._hear_into, self._send = self._channel.recv_into, lambda said: self._channel.send([said])
        else:
            self._sock = socket.create_connection(address.endpoint, timeout=5)
            self._hear_into, self._send = self._sock.recv_into, self._sock.sendall

    def say(self, said: bytes) -> None:
        self._send(said)

    def hear(self) -> bytes:
        """What has come; nothing when the learner has hung up."""
        return bytes(self._buffer[: self._hear_into(self._buffer)])

    def close(self) -> None:
        if self._channel is not None:
            self._channel.shutdown()
        (self._channel or self._sock).close()


def _knock(address: Any, token: Callable[[], str | None]) -> NoReturn:
    """Clients that are not let in, one after another."""
    from echo_core import Client
    from echo_core.base.errors import EchoError

    example = PAYLOADS["20B"].example()
    while True:
        with suppress(EchoError, OSError):
            Client(address, example, token=token(), timeout=1).close()


def _hold(address: Any, keep: Callable[[socket.socket], bool], pause: float) -> NoReturn:
    """Keep `PARALLEL` connections open, asking `keep` of each in turn whether it still stands."""
    allow_open_files(4 * PARALLEL)
    held: list[socket.socket] = []
    while True:
        for sock in held.copy():
            try:
                stands = keep(sock)
            except BlockingIOError:
                stands = True
            except OSError:
                stands = False
            if not stands:
                held.remove(sock)
                sock.close()
        with suppress(OSError):
            while len(held) < PARALLEL:
                held.append(socket.create_connection(address.endpoint, timeout=1))
        time.sleep(pause)
