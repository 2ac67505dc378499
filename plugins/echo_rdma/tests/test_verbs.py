"""Only on lanes of network cards, the learner reads large samples from the worker's memory straight into their slots."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from echo_core import Client, Server
from echo_rdma.lanes import is_rdma
from echo_rdma.transport import RdmaTransport
from echo_testing.processes import SLOWER
from echo_testing.samples import Tally, example, stacked

# (bytes of filler, the size from which UCX uses rendezvous, how many of 8 samples are read). UCX's own limit depends on the card.
CASES = [(48, "64k", 0), (300_000, "64k", 8), (300_000, "inf", 0)]

pytestmark = [
    pytest.mark.usefixtures("ucx"),
    pytest.mark.skipif("ECHO_RDMA_LANES" not in os.environ, reason="for a machine with RDMA devices: ECHO_RDMA_LANES, ECHO_RDMA_HOST (`nox -s rdma_vm`)"),
]


@pytest.fixture(autouse=True)
def _lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("UCX_TLS", os.environ["ECHO_RDMA_LANES"])
    monkeypatch.setenv("ECHO_TOKEN", "the-token-of-these-tests-long-enough")
    yield


@pytest.mark.parametrize(("filler", "rendezvous", "read"), CASES)
def test_large_samples_are_read_straight_into_their_slots(filler: int, rendezvous: str, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_RNDV_THRESH", rendezvous)
    times = {"require_rdma": True, "lease": 10.0 * SLOWER}
    transport = RdmaTransport(host=os.environ["ECHO_RDMA_HOST"], port=0, handshake_timeout=10.0 * SLOWER, **times)
    tally = Tally()
    with Server(example(filler), 4, transport, num_buffers=4) as server:
        with Client(server.address, example(filler), timeout=30 * SLOWER, **times) as client:
            client.send_batch(stacked(1, 0, 8, filler))
            client.wait()
            stats, lanes = server.stats(), client.stats()["lanes"].split(", ")
        for _ in range(2):
            one = server.sample(timeout=30 * SLOWER)
            assert one is not None
            tally.add(one.batch)
            del one
    assert tally.numbers == {1: list(range(8))}
    assert stats["transport/rdma/direct"] == read
    assert all(map(is_rdma, lanes)), lanes
    assert RdmaTransport.describe()["UCX lanes"].endswith(": RDMA")
