"""A learner that breaks the protocol is left, and nothing damaged is handed out."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from local_net import SPEC, TOKEN, connect, net

from echo_core.base.errors import EchoError, ProtocolError
from echo_core.testing.samples import sample
from echo_core.wire.channel.connection import ChannelConnection
from echo_core.wire.protocol import FIRST, LAST, Kind, frame

pytestmark = pytest.mark.needs("echo-samplers")


@contextmanager
def faulty_learner(*frames: bytes) -> Iterator[ChannelConnection]:
    """A connection to a learner that says this after the handshake."""
    from echo_core.wire.handshake import ServerHandshake

    net.listening["learner"] = queue.SimpleQueue()
    connected = threading.Event()

    def run() -> None:
        sock = net.listening["learner"].get()
        assert sock is not None
        with sock:
            handshake = ServerHandshake(SPEC, [TOKEN])
            while not handshake.done:
                sock.sendall(handshake.receive(sock.recv(65536)))
            sock.sendall(frames[0])
            connected.wait(10)
            with suppress(OSError):
                sock.sendall(b"".join(frames[1:]))
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
        thread.join()


ACK = frame(Kind.ACK)


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([ACK, frame(Kind.ACK, seq=1)], "acknowledged 1 samples, after 0 and with 0 sent"),
        ([ACK, bytes(24)], "unknown kind 0"),
        ([ACK, frame(Kind.SUBSCRIBE)], "may travel only in the other direction"),
        ([ACK, frame(Kind.WEIGHTS, b"x", seq=1, flags=LAST)], "without the first one"),
        ([ACK, frame(Kind.WEIGHTS, b"x", seq=1, flags=FIRST | LAST)], "incomplete description"),
        ([ACK, frame(Kind.WEIGHTS, b"\2\0\0\0{}payload", seq=1, flags=FIRST | LAST)], "malformed"),
    ],
)
def test_a_learner_that_breaks_the_protocol_is_left(frames: list[bytes], text: str) -> None:
    with faulty_learner(*frames) as connection:
        with pytest.raises(ProtocolError, match=text):
            connection.weights(10)
        with pytest.raises(ProtocolError, match=text):
            connection.send(sample(0, 0))


def test_a_learner_that_does_not_begin_with_an_acknowledgement_is_left() -> None:
    with pytest.raises(ProtocolError, match="began with PING"), faulty_learner(frame(Kind.PING)):
        pass


def test_damaged_weights_are_never_handed_out() -> None:
    from echo_core.wire.protocol import weights_frames
    from echo_core.wire.weights import pack

    stream = bytearray(b"".join(b"".join(pieces) for pieces in weights_frames(pack({"w": np.ones(9)}, 1))))
    stream[-70] ^= 1
    with faulty_learner(ACK, bytes(stream)) as connection, pytest.raises(ProtocolError, match="damaged"):
        connection.weights(10)
