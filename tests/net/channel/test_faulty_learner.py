"""A learner that breaks the protocol once is dialled again, one that always does is left, and nothing damaged is handed out."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from local_net import SPEC, TOKEN, connect, net

from echo_core.base.errors import EchoError, ProtocolError
from echo_core.wire.protocol import FIRST, LAST, Kind, frame, weights_frames
from echo_core.wire.weights import pack
from echo_net.channel.connection import ChannelConnection
from echo_net.handshake import ServerHandshake
from echo_net.network.broken_links import MOST
from echo_testing.processes import until
from echo_testing.samples import sample

pytestmark = pytest.mark.needs("echo-samplers")


ACK = frame(Kind.ACK)


@contextmanager
def faulty_learner(*frames: bytes, links: int = MOST) -> Iterator[ChannelConnection]:
    """A connection to a learner that says this after the handshake, and only an acknowledgement after more than so many links."""
    net.listening["learner"] = queue.SimpleQueue()
    connected = threading.Event()

    def run() -> None:
        number = 0
        while (sock := net.listening["learner"].get()) is not None:
            number += 1
            said = frames if number <= links else (ACK,)
            with sock, suppress(OSError):
                handshake = ServerHandshake(SPEC, [TOKEN])
                while not handshake.done:
                    sock.sendall(handshake.receive(sock.recv(65536)))
                sock.sendall(said[0])
                connected.wait(10)
                sock.sendall(b"".join(said[1:]))
                while sock.recv(65536):
                    pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        connection = connect()
        connected.set()
        yield connection
        with suppress(EchoError):
            connection.close(0)
    finally:
        connected.set()
        net.listening["learner"].put(None)
        thread.join()


FAULTS = [
    ([ACK, frame(Kind.ACK, seq=1)], "acknowledged 1 samples, after 0 and with 0 sent"),
    ([ACK, bytes(24)], "unknown kind 0"),
    ([ACK, frame(Kind.SUBSCRIBE)], "may travel only in the other direction"),
    ([ACK, frame(Kind.WEIGHTS, b"x", seq=1, flags=LAST)], "without the first one"),
    ([ACK, frame(Kind.WEIGHTS, b"x", seq=1, flags=FIRST | LAST)], "incomplete description"),
    ([ACK, frame(Kind.WEIGHTS, b"\2\0\0\0{}payload", seq=1, flags=FIRST | LAST)], "malformed"),
]


@pytest.mark.parametrize(("frames", "text"), FAULTS)
def test_a_learner_that_breaks_the_protocol_each_time_is_left(frames: list[bytes], text: str) -> None:
    with faulty_learner(*frames) as connection:
        for call in (lambda: connection.weights(10), lambda: connection.send(sample(0, 0))):
            with pytest.raises(ProtocolError, match=f"{text}.*{MOST} connections in a row"):
                call()
        assert connection.stats()["reconnects"] == MOST - 1


@pytest.mark.parametrize(("frames", "text"), FAULTS)
def test_a_link_on_which_the_protocol_was_broken_is_replaced(frames: list[bytes], text: str) -> None:
    with faulty_learner(*frames, links=MOST - 1) as connection:
        until(lambda: connection.stats()["reconnects"] == MOST - 1 and connection.stats()["connected"], "it is connected once more")
        connection.send(sample(0, 0))


def test_a_learner_that_does_not_begin_with_an_acknowledgement_is_left() -> None:
    with pytest.raises(ProtocolError, match="began with PING"), faulty_learner(frame(Kind.PING)):
        pass


def test_damaged_weights_are_never_handed_out() -> None:
    stream = bytearray(b"".join(b"".join(pieces) for pieces in weights_frames(pack({"w": np.ones(9)}, 1))))
    stream[-70] ^= 1
    with faulty_learner(ACK, bytes(stream)) as connection, pytest.raises(ProtocolError, match="damaged"):
        connection.weights(10)


def test_a_damaged_number_of_a_version_is_noticed() -> None:
    header, *rest = next(iter(weights_frames(pack({"w": np.ones(9)}, 1))))
    damaged = header[:8] + b"\5" + header[9:]
    with faulty_learner(ACK, b"".join([damaged, *rest])) as connection, pytest.raises(ProtocolError, match="weights 1 arrived as version 5"):
        connection.weights(10)
