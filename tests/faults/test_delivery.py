"""Nothing acknowledged is lost and nothing arrives twice, however often the link breaks."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rig.ledger import Consumer
from rig.proxy import Plan, Proxy
from rig.workers import numbered, rows

from echo_core import Client, ConnectionClosedError, EchoTimeoutError, Server
from echo_testing.processes import returns, until
from echo_testing.samples import example, stacked

MB = 1_000_000


def committed(server: Server) -> int:
    """How many samples the learner has committed. The store's own figure may miss a batch that is just being taken."""
    return int(server.stats()["transport/tcp/samples"])


class Sender:
    """Sends on a thread until told to stop; `sent` counts.

    An impatient one gives every call a few milliseconds, and calls again until it succeeds.
    """

    def __init__(
        self, client: Client, maker: int, filler: int, batch: int, impatient: bool = False
    ) -> None:
        self.client, self.maker, self.sent = client, maker, 0
        self._filler, self._batch, self._impatient = filler, batch, impatient
        self._over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sender")
        self._thread.start()

    def _run(self) -> None:
        try:
            samples = numbered(self.maker, self._filler)
            while not self._over:
                if self._batch:
                    part = stacked(self.maker, self.sent, self._batch, self._filler)
                    self._call(self.client.send_batch, part)
                else:
                    self._call(self.client.send, next(samples))
                self.sent += self._batch or 1
        except BaseException as failure:
            self._failure = failure

    def _call(self, send: Callable[..., None], what: Any) -> None:
        until = time.monotonic() + 60
        while self._impatient:
            try:
                return send(what, timeout=0.003)
            except (EchoTimeoutError, ConnectionClosedError):
                if time.monotonic() > until:
                    raise
                # It was not taken: there was no room, or no connection for the moment.
        send(what)

    def stop(self) -> None:
        self._over = True
        self._thread.join(60)
        if self._failure is not None:
            raise self._failure


def breaking(enough: threading.Event, reach: int, chance: random.Random) -> Callable[[int], Plan]:
    """A plan that breaks every link until there were enough, each before about `reach` bytes have passed."""

    def plan(link: int) -> Plan:
        if enough.is_set():
            return Plan()
        # As often within the first bytes as anywhere else: a link's beginning is the hard part.
        after = int(chance.choice([4_000, reach]) * chance.random() ** 2)
        up = chance.random() < 0.7
        how = chance.choice(["close", "reset", "half"])
        piece = chance.choice([64 << 10, 64 << 10, 9000, 97 if after < 10_000 else 1500])
        return Plan(after if up else None, None if up else after // 50, how, piece)

    return plan


@pytest.mark.soak
@pytest.mark.parametrize(
    ("filler", "batch", "reach", "num_threads"),
    [
        (4, 0, 100_000, 1),
        (48, 64, 1_000_000, 3),
        (200_000, 0, 4_000_000, 1),
        (20_000, 7, 1_000_000, 3),
    ],
    ids=["small", "batches", "large", "batches of large"],
)
def test_links_cut_at_random_bytes_under_load(
    filler: int,
    batch: int,
    reach: int,
    num_threads: int,
    serve: Callable[..., Server],
    proxy: Callable[..., Proxy],
    press_on: float,
) -> None:
    cuts = int((4 if filler > 4096 else 8) * press_on)
    enough = threading.Event()
    plan = breaking(enough, reach, random.Random(filler))
    server = serve(batch_size=8, filler=filler, transport={"num_threads": num_threads})
    links = proxy(server.port, plan)
    with Consumer(server) as consumer:
        clients = [Client(links.address, example(filler), timeout=60) for _ in range(2)]
        senders = [
            Sender(client, maker, filler, batch, impatient=maker == 1)
            for maker, client in enumerate(clients)
        ]

        def cut_often_enough() -> bool:
            consumer.check()
            # Read in this order, so that what is committed meanwhile cannot hide a lie.
            acknowledged = sum(client.stats()["acknowledged"] for client in clients)
            assert acknowledged <= server.stats()["transport/tcp/samples"]
            # A link that is cut in its handshake, or that of an observer which asks why a worker waits, makes no worker come back.
            returned = sum(client.stats()["reconnects"] for client in clients)
            return len(links.links) > cuts and returned > cuts // 2

        until(cut_often_enough, f"{cuts} links were cut, and workers came back after half of them", within=120)
        enough.set()
        for sender in senders:
            sender.stop()
            sender.client.close()
            assert sender.client.stats()["acknowledged"] == sender.sent
        assert committed(server) == sum(sender.sent for sender in senders)
        consumer.finish().check({sender.maker: sender.sent for sender in senders})


@pytest.mark.parametrize(("filler", "times"), [(4, 300), (MB, 30)], ids=["20 B", "1 MB"])
def test_close_right_after_the_last_send_loses_nothing(
    filler: int, times: int, serve: Callable[..., Server]
) -> None:
    server = serve(batch_size=4, filler=filler)
    with Consumer(server) as consumer:
        sent = {}
        for maker in range(times):
            client = Client(server.address, example(filler))
            count = maker % 5
            for sample in rows(maker, 0, count, filler):
                client.send(sample)
            client.close()
            sent[maker] = count
            assert committed(server) == sum(sent.values())
        consumer.finish().check(sent)


def test_close_delivers_through_a_lost_link(
    serve: Callable[..., Server], proxy: Callable[..., Proxy]
) -> None:
    server = serve(batch_size=4, filler=MB)
    with Consumer(server) as consumer:
        for maker in range(5):
            # Cut inside the last sample; close() must come back and send it again.
            links = proxy(server.port, lambda n: Plan(up=3 * MB - 1000) if n == 0 else Plan())
            client = Client(links.address, example(MB))
            for sample in rows(maker, 0, 3, MB):
                client.send(sample)
            returned: Any = returns(client.close)
            assert returned is None
            assert committed(server) == 3 * (maker + 1)
        consumer.finish().check(dict.fromkeys(range(5), 3))


@pytest.mark.soak
def test_weights_and_requests_through_lost_links(
    serve: Callable[..., Server], proxy: Callable[..., Proxy], press_on: float
) -> None:
    """Versions only rise and none is torn; a request is answered, or said to be lost."""
    cuts = int(6 * press_on)
    chance = random.Random(1)
    enough = threading.Event()

    def plan(link: int) -> Plan:
        if enough.is_set():
            return Plan()
        down = int(chance.choice([2_000, 3_000_000]) * chance.random() ** 2)
        return Plan(None, down, chance.choice(["close", "reset", "half"]))

    server = serve(batch_size=8)
    links = proxy(server.port, plan)
    with Consumer(server) as consumer, Client(links.address, example(), timeout=60) as client:
        sender = Sender(client, 0, 48, 0)
        version, answered, lost = 0, 0, 0
        for number in itertools.count():
            if len(links.links) > cuts and client.stats()["reconnects"] > cuts // 2:
                break
            published = server.publish({"w": np.full(200_000, number), "n": np.array(number)})
            weights = client.weights(newer_than=version)
            assert version < weights.version <= published.version
            version = weights.version
            assert (weights.params["w"] == weights.params["n"]).all()
            try:
                blob = number.to_bytes(8, "little") * 1000
                assert client.request("ping", {}, blob)[1] == blob
                answered += 1
            except ConnectionClosedError as error:
                assert "not answered" in str(error)
                lost += 1
        enough.set()
        assert answered
        until(
            lambda: any(p.weights_version == version for p in server.peers()),
            "the receipt of the newest has come",
        )
        sender.stop()
        client.close()
        assert server.stats()["transport/tcp/protocol_errors"] == 0
        consumer.finish().check({0: sender.sent})
