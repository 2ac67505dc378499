"""Nothing acknowledged is lost and nothing arrives twice, however often the link breaks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from echo_core import Client, Server
from echo_core.testing.processes import returns, until
from echo_core.testing.samples import example, stacked
from rig.ledger import Consumer
from rig.proxy import Plan, Proxy
from rig.workers import numbered, rows

MB = 1_000_000


class Sender:
    """Sends on a thread until told to stop; `sent` counts."""

    def __init__(self, client: Client, maker: int, filler: int, batch: int) -> None:
        self.client, self.maker, self.sent = client, maker, 0
        self._filler, self._batch = filler, batch
        self._over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sender")
        self._thread.start()

    def _run(self) -> None:
        try:
            samples = numbered(self.maker, self._filler)
            while not self._over:
                if self._batch:
                    self.client.send_batch(
                        stacked(self.maker, self.sent, self._batch, self._filler)
                    )
                else:
                    self.client.send(next(samples))
                self.sent += self._batch or 1
        except BaseException as failure:
            self._failure = failure

    def stop(self) -> None:
        self._over = True
        self._thread.join(60)
        if self._failure is not None:
            raise self._failure


@pytest.mark.parametrize(
    ("filler", "batch", "reach"),
    [(4, 0, 100_000), (48, 64, 1_000_000), (200_000, 0, 4_000_000), (20_000, 7, 1_000_000)],
    ids=["small", "batches", "large", "batches of large"],
)
def test_links_cut_at_random_bytes_under_load(
    filler: int,
    batch: int,
    reach: int,
    serve: Callable[..., Server],
    proxy: Callable[..., Proxy],
    press_on: float,
) -> None:
    cuts = int((4 if filler > 4096 else 8) * press_on)
    chance = random.Random(filler)

    def plan(link: int) -> Plan:
        if link >= cuts:
            return Plan()
        # As often within the first bytes as anywhere else: a link's beginning is the hard part.
        after = int(chance.choice([4_000, reach]) * chance.random() ** 2)
        up = chance.random() < 0.7
        how = chance.choice(["close", "reset", "half"])
        piece = chance.choice([64 << 10, 64 << 10, 9000, 97 if after < 10_000 else 1500])
        return Plan(after if up else None, None if up else after // 50, how, piece)

    server = serve(batch_size=8, filler=filler)
    links = proxy(server.port, plan)
    with Consumer(server) as consumer:
        clients = [Client(links.address, example(filler), timeout=60) for _ in range(2)]
        senders = [Sender(client, maker, filler, batch) for maker, client in enumerate(clients)]

        def cut_often_enough() -> bool:
            consumer.check()
            # Read in this order, so that what is committed meanwhile cannot hide a lie.
            acknowledged = sum(client.stats()["acknowledged"] for client in clients)
            assert acknowledged <= server.stats()["transport/tcp/samples"]
            return len(links.links) > cuts

        until(cut_often_enough, f"{cuts} links were cut", within=120)
        for sender in senders:
            sender.stop()
            sender.client.close()
            assert sender.client.stats()["acknowledged"] == sender.sent
        assert consumer.inserted() == sum(sender.sent for sender in senders)
        assert sum(client.stats()["reconnects"] for client in clients) > cuts // 2
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
            assert consumer.inserted() == sum(sent.values())
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
            assert consumer.inserted() == 3 * (maker + 1)
        consumer.finish().check(dict.fromkeys(range(5), 3))
