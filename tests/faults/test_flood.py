"""Batches of one at full speed: a wake-up lost on either side would end it for good."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from rig.processes import Child
from rig.workers import flood

from echo_core import Client, EchoTimeoutError, Server
from echo_testing.samples import example, sample


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 4])
def test_batches_of_one_never_hang(
    workers: int,
    serve: Callable[..., Server],
    start: Callable[..., Child],
    press_on: float,
) -> None:
    server = serve(batch_size=1, filler=0)
    # In the end each worker has tens of thousands of samples to deliver, in batches of one: a slow machine needs longer for them than the default timeout.
    children = [start(flood, str(server.address), maker, 0, None, {"timeout": 600}) for maker in range(workers)]
    for child in children:
        assert child.hear() == "ready"
    due = [0] * workers  # the next number of each

    def take(timeout: float) -> None:
        batch = server.sample(timeout=timeout).batch
        maker, number = int(batch["maker"][0]), int(batch["number"][0])
        assert number == due[maker]
        due[maker] += 1

    end = time.monotonic() + press_on
    while time.monotonic() < end:
        for _ in range(1000):
            take(timeout=30)
    assert all(due)
    for child in children:
        child.tell("stop")
    sent: dict[int, int] = {}
    while len(sent) < workers or sum(due) < sum(sent.values()):
        for maker, child in enumerate(children):
            if maker not in sent and child.link.poll():
                sent[maker] = child.hear()["samples"]
        try:
            for _ in range(1000):
                take(timeout=0.2)
        except EchoTimeoutError:
            pass
    assert due == [sent[maker] for maker in range(workers)]
    for child in children:
        child.end()


def test_a_worker_that_stops_in_full_flow_leaves_nothing_lying(serve: Callable[..., Server]) -> None:
    """Its last samples arrive without another call, however the acknowledgements before them fell."""
    server = serve(batch_size=8, filler=4096)
    # A worker looks after a quarter of the silence by itself; here that would be too late.
    with Client(server.address, example(4096), window_bytes=1 << 20, silence=600.0) as client:
        sent = taken = 0
        for _ in range(30):
            with pytest.raises(EchoTimeoutError):
                while True:
                    client.send(sample(1, sent, 4096), timeout=0.02)
                    sent += 1
            while taken + 8 <= sent:
                taken += len(server.sample(timeout=30).batch["number"])
            while sent % 8:
                client.send(sample(1, sent, 4096), timeout=30)
                sent += 1
            while taken < sent:
                taken += len(server.sample(timeout=30).batch["number"])
