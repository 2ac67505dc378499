"""Reserved slots that are given up: the learner learns of it, no matter which thread gives them up or where."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.errors import EchoError, EchoTimeoutError
from echo_shm.listener import ShmListener
from echo_shm.transport import ShmTransport
from echo_testing.processes import returns, until
from echo_testing.samples import example

sys.path.insert(0, str(Path(__file__).parent))  # for processes that are spawned
import nursery

spawning = multiprocessing.get_context("spawn")

pytestmark = pytest.mark.usefixtures("no_memory_left")


def test_a_slot_is_given_up_by_the_garbage_collector_in_a_thread_that_holds_the_lock() -> None:
    with Server(example(), 4, ShmTransport(claim_timeout=600.0)) as server:
        heard, said = spawning.Pipe(duplex=False)
        process = spawning.Process(target=nursery.drop, args=(str(server.address), said))
        process.start()
        try:
            assert heard.poll(20), "it waits for a lock that it holds itself"
            assert heard.recv() == "dropped"
            until(lambda: server.stats()["store/samples_aborted_total"] == 1, "the slot is free, though nobody calls")
        finally:
            process.kill()
            process.join()
            process.close()


def test_the_only_slot_is_given_up_and_had_again_at_once() -> None:
    with Server(example(), 4, ShmTransport()) as server, Client(server.address, example(), reservations=1) as client:
        for _ in range(100):
            with client.reserve():
                pass
        for _ in range(100):
            client.reserve()
        slot = client.reserve()
        assert server.stats()["store/samples_aborted_total"] == 200
        with pytest.raises(EchoError, match="every slot that this client may reserve is in use"):
            client.reserve()
        slot.abort()


def test_whoever_waits_for_a_slot_that_was_given_up_is_told_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShmListener, "give_up", lambda self, record: None)
    with Server(example(), 4, ShmTransport()) as server, Client(server.address, example(), reservations=1) as client:
        client.reserve().abort()
        begun = time.process_time()
        with pytest.raises(EchoTimeoutError, match="to take back a slot that was given up"):
            client.reserve(timeout=0.5)
        assert time.process_time() - begun < 0.3, "it looks without a pause"


def test_who_asked_for_no_reservations_is_told_at_once() -> None:
    with Server(example(), 4, ShmTransport()) as server, Client(server.address, example(), reservations=0) as client:
        reserved = returns(client.reserve)
    assert isinstance(reserved, EchoError) and "connect with more reservations" in str(reserved)


def test_samples_made_in_place_are_counted_while_another_thread_sends() -> None:
    """The other thread copies its batch without the GIL, sample after sample, and counts them meanwhile."""
    batch, given = {"x": np.zeros((3000, 2))}, 0
    with Server({"x": np.zeros(2)}, 1, ShmTransport(), num_buffers=4000) as server, Client(server.address, {"x": np.zeros(2)}) as client:
        for _ in range(15):
            sending = threading.Thread(target=client.send_batch, args=(batch,))
            sending.start()
            made = 0
            while sending.is_alive() and made < 900:
                client.reserve().commit()
                made += 1
            sending.join()
            given += 3000 + made
            assert client.stats()["samples"] == client.stats()["direct_samples"] == given
            for _ in range(3000 + made):
                server.sample(timeout=10)
