"""Random handshakes and frames over every network transport: an error or nothing, never a crash, a hang or a sample that nobody sent.

The native parsers are also fuzzed for coverage: plugins/echo_tcp/tests/native/*_fuzz.cpp say how.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strangers import EXAMPLE, TOKEN, dial, receive

from echo_core import Client, Server
from echo_core.base.errors import EchoError
from echo_core.wire.protocol import Kind, pack_header
from echo_net.channel import Channel
from echo_net.handshake import ClientHandshake
from echo_testing.processes import until

pytestmark = pytest.mark.needs("echo-samplers")

SAMPLE = 24  # bytes of EXAMPLE
MARK = 0x5A  # what every byte of a valid sample is

few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def learner(serve: Callable[..., Server]) -> Iterator[Server]:
    server = serve(handshake_timeout=5.0)
    seen: list[int] = []
    drainer = threading.Thread(target=lambda: [seen.extend(sample.batch["n"].tolist()) for sample in server.dataset_iter()])
    drainer.start()
    try:
        yield server
        # It works as before.
        with Client(server.address, EXAMPLE, timeout=30) as client:
            client.send_batch({"x": np.zeros((8, 4), np.float32), "n": np.arange(8)})
        until(lambda: server.peers() == [], "everybody has left")
        (listener,) = server._listeners
        inserted = listener.stats()["samples"]
        until(lambda: len(seen) == int(inserted) // 4 * 4, "what is whole was taken")
        assert server.stats()["store/samples_inserted_total"] == inserted
        assert {0, 1, 2, 3, 4} <= set(seen)
    finally:
        server.close()
        drainer.join()


edges = [255, 65535, 65536, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1]
numbers = st.one_of(st.integers(0, 70), st.sampled_from(edges))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame that may be right in every field, in most or in none, and a payload of about its length."""
    kind = draw(st.one_of(st.sampled_from([int(kind) for kind in Kind]), st.integers(0, 255)))
    count = draw(st.one_of(st.integers(0, 5), numbers)) & 0xFFFFFFFF
    length = draw(st.one_of(st.just(count * SAMPLE if kind == 1 else 0), st.integers(0, 100), numbers))
    head = pack_header(kind, flags=draw(st.integers(0, 3)), count=count, seq=draw(numbers), length=length)
    payload = bytes([MARK]) * min(length + draw(st.integers(-2, 2)) if draw(st.booleans()) else length, 5000)
    return head + payload


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with a few bytes changed, taken out or put in."""
    out = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(out)))
        out[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(out)


def say(channel: Channel, data: bytes, cuts: list[int]) -> None:
    """Send `data` in portions; the learner may hang up meanwhile."""
    with suppress(OSError):
        for cut in [*cuts, len(data)]:
            if data[:cut]:
                channel.send([data[:cut]])
            data = data[cut:]


@few
@given(st.data())
def test_any_handshake(learner: Server, data: st.DataObject) -> None:
    channel = dial(learner.address)
    try:
        handshake = ClientHandshake(learner.spec, TOKEN.encode(), secrets.token_hex(16))
        reply, heard = handshake.start(), b"?"
        for step in range(4):
            damaged = data.draw(st.one_of(st.just(reply), mutated(reply), st.binary(max_size=200)), label=f"message {step}")
            say(channel, damaged, data.draw(st.lists(st.integers(0, 20), max_size=3)))
            if not damaged or damaged != reply:
                break  # it waits for more, or it hangs up
            heard = receive(channel)
            if not heard:
                break
            try:
                reply = handshake.receive(heard)
            except EchoError:
                break
            if handshake.done:
                break
    finally:
        channel.shutdown()
        channel.close()


@few
@given(st.data())
def test_any_frames(learner: Server, data: st.DataObject) -> None:
    channel = dial(learner.address)
    try:
        handshake = ClientHandshake(learner.spec, TOKEN.encode(), secrets.token_hex(16))
        reply = handshake.start()
        while not handshake.done:
            channel.send([reply])
            reply = handshake.receive(receive(channel))
        valid = pack_header(Kind.DATA, count=2, seq=1, length=2 * SAMPLE) + bytes([MARK]) * 2 * SAMPLE
        parts = st.one_of(frames(), st.just(valid), mutated(valid), st.binary(max_size=40))
        said = b"".join(data.draw(st.lists(parts, max_size=4), label="frames"))
        say(channel, said, data.draw(st.lists(st.integers(0, 60), max_size=4)))
    finally:
        channel.shutdown()
        channel.close()
