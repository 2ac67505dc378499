"""Workers that die in the middle of anything: what they sent whole counts, nothing else does."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from rig.ledger import Consumer
from rig.processes import Child
from rig.proxy import Plan, Proxy
from rig.raw import Cut, RawWorker
from rig.workers import flood, hold

from echo_core import Server
from echo_testing.processes import until

LARGE = 300_000  # bytes; read straight into its slot


@pytest.fixture
def steady(start: Callable[..., Child]) -> Callable[[Server, int], Child]:
    """A worker that must not notice any of this; it is maker 0."""

    def steady(server: Server, filler: int) -> Child:
        child = start(flood, str(server.address), 0, filler)
        assert child.hear() == "ready"
        return child

    return steady


def stages(sizes: list[int], frame: int, filler: int) -> Iterator[int]:
    """After how many bytes to cut: everywhere in the handshake's messages `sizes` and in two
    frames of `frame` bytes of one sample each."""
    edges = [0]
    for size in [*sizes, frame, frame]:
        edges.append(edges[-1] + size)
    for begin, end in pairwise(edges):
        yield from (begin, begin + 1, begin + 11, begin + 12, (begin + end) // 2, end - 1)
    for begin in edges[-3:-1]:  # header, first leaf, between the leaves, last leaf
        yield from (begin + at for at in (2, 23, 24, 25, 24 + filler, 24 + filler + 8))
    yield edges[-1]


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("filler", [48, LARGE])
def test_a_stream_cut_at_any_byte(
    filler: int, how: str, serve: Callable[..., Server], steady: Callable[[Server, int], Child]
) -> None:
    server = serve(batch_size=8, filler=filler)
    with Consumer(server) as consumer:
        worker = steady(server, filler)
        with RawWorker(server, filler) as raw:
            sizes, frame = raw.sizes, 24 + 16 + filler
        shaken = sum(sizes)
        expected, most = {}, {}
        for maker, cut in enumerate(sorted(set(stages(sizes, frame, filler))), 1):
            whole = max(0, min(2, (cut - shaken) // frame))
            raw = None
            try:
                raw = RawWorker(server, filler, most=cut)
                raw.samples(maker, 0)
                raw.samples(maker, 1)
            except Cut:
                pass
            if raw is None:
                continue  # it ended in the handshake
            if how == "close":
                raw.sock.shutdown(socket.SHUT_WR)
                while raw.sock.recv(65536):
                    pass  # acknowledgements, then the learner hangs up
                expected[maker] = whole
            most[maker] = whole
            raw.close(how)
        seen = consumer.ledger.count.get(0, 0)
        consumer.wait_for(0, seen + 100)  # it goes on
        until(lambda: len(server.peers()) == 1, "those who have died are gone")
        count = worker.ask("stop")["acknowledged"]
        came = consumer.finish().count
        for maker, whole in most.items():
            assert came.get(maker, 0) <= whole
            expected.setdefault(maker, came.get(maker, 0))
        consumer.ledger.check({0: count, **expected})
        worker.end()


@pytest.mark.parametrize("filler", [48, LARGE])
def test_kill_9_at_every_stage_of_a_message(
    filler: int,
    serve: Callable[..., Server],
    steady: Callable[[Server, int], Child],
    start: Callable[..., Child],
    proxy: Callable[..., Proxy],
) -> None:
    server = serve(batch_size=8, filler=filler)
    with RawWorker(server, filler, name="victim") as raw:
        hello, proof, spec = raw.sizes
    shaken = hello + proof + spec
    cuts = [hello // 2, hello + proof + 5, shaken, shaken + 12, shaken + 24]
    cuts += [shaken + 24 + filler // 2, shaken + 24 + filler + 8]
    plans = [Plan(up=cut, how="hold") for cut in cuts]
    plans.append(Plan())  # after the last byte; its end comes together with the sample
    with Consumer(server) as consumer:
        worker = steady(server, filler)
        links = proxy(server.port, plans.__getitem__)
        victims = []
        for maker, plan in enumerate(plans, 1):
            victims.append(start(hold, links.address, maker, filler, {"name": "victim"}))
            until(lambda: len(links.links) == len(victims), "it has connected")
            if plan.up is not None:
                until(lambda: links.links[-1].broken, f"{plan.up} bytes have passed")
            else:
                consumer.wait_for(maker, 1)
        seen = consumer.ledger.count.get(0, 0)
        consumer.wait_for(0, seen + 100)  # nobody waits for those whose message is half here
        for victim in victims:
            victim.kill()
        links.cut("reset")
        until(lambda: len(server.peers()) == 1, "the dead are gone")
        consumer.wait_for(0, seen + 200)
        count = worker.ask("stop")["acknowledged"]
        consumer.finish().check({0: count, len(plans): 1})
        worker.end()


@pytest.mark.parametrize("filler", [48, LARGE])
def test_kill_9_in_a_flood(
    filler: int,
    serve: Callable[..., Server],
    steady: Callable[[Server, int], Child],
    start: Callable[..., Child],
) -> None:
    server = serve(batch_size=16, filler=filler)
    chance = random.Random(filler)
    with Consumer(server) as consumer:
        worker = steady(server, filler)
        acknowledged = {}
        for maker in range(1, 7):
            victim = start(flood, str(server.address), maker, filler)
            assert victim.hear() == "ready"
            consumer.wait_for(maker, chance.randrange(1, 2000 if filler == 48 else 30))
            acknowledged[maker] = victim.ask("?")["acknowledged"]
            victim.kill()
        until(lambda: len(server.peers()) == 1, "the dead are gone")
        count = worker.ask("stop")["acknowledged"]
        came = dict(consumer.finish().count)
        for maker, least in acknowledged.items():
            assert came[maker] >= least
        consumer.ledger.check({**came, 0: count})
        worker.end()
