"""Clauses about the end of a job: a learner that closes on purpose tells every client so, and each of its calls raises JobEnded. After any other
end of a learner, clients come back."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core.base.errors import ClosedError, ConnectionClosedError, JobEnded
from echo_core.client.client import Client
from echo_core.client.observer import Observer
from echo_core.server.server import Server
from echo_core.wire.later import Later

from ...processes import returns, until
from ...rig import PATIENCE, Rig, drain
from ...samples import example, sample, stacked
from ..ending import CALLS, WAITS, interrupted_by
from ..weights.relays import relay_of

Needs = Callable[[str], None]

#: How a `with Server` may be left: the type of an error and its arguments. Those of the first group end the job.
GOOD_ENDS: dict[str, tuple[Any, ...] | None] = {"no error": None, "ctrl-c": (KeyboardInterrupt,), "exit": (SystemExit,), "exit 0": (SystemExit, 0)}
BAD_ENDS: dict[str, tuple[Any, ...]] = {"error": (ValueError, "a bug of the learner"), "exit 1": (SystemExit, 1), "exit text": (SystemExit, "no data")}


def leave(server: Server, end: tuple[Any, ...] | None) -> None:
    """Leave a `with Server` block by an error. It is made here, because an error that is kept keeps the frames that it was raised in, and so the server."""
    with suppress(BaseException), server:
        if end is not None:
            error, *arguments = end
            raise error(*arguments)


def owing(rig: Rig, **options: Any) -> tuple[Server, Client]:
    """A learner that has room for two samples, and a client that has sent five."""
    server = rig.server(batch_size=1, num_buffers=2)
    client = rig.client(server, **options)
    client.send_batch(stacked(1, 0, 5))
    until(lambda: client.stats()["unacknowledged"] == 3, "two are acknowledged", PATIENCE)
    return server, client


def told(*clients: Client | Observer) -> None:
    """Wait until all of them know that the job has ended."""
    until(lambda: all(client.ended for client in clients), "they are told that the job has ended", PATIENCE)


class JobEndClauses:
    @pytest.mark.parametrize("call", CALLS)
    def test_after_the_end_of_the_job_every_call_says_so(self, rig: Rig, call: str) -> None:
        server, client = owing(rig)
        assert not client.ended
        server.close()
        told(client)
        for _ in range(2):
            with pytest.raises(JobEnded, match=r"has ended the job; 3 samples .* not acknowledged") as caught:
                CALLS[call](client)
            assert caught.value.unacknowledged == pickle.loads(pickle.dumps(caught.value)).unacknowledged == 3
        assert client.unacknowledged == 3 and client.stats()["connected"] is False
        client.close()  # a call has raised the error already
        with pytest.raises(ClosedError):
            CALLS[call](client)

    @pytest.mark.parametrize("call", WAITS)
    def test_the_end_of_the_job_ends_every_wait(self, rig: Rig, call: str) -> None:
        server, client = owing(rig, max_inflight_msgs=3)
        pending: list[Later] = []
        server.serve("ping/never", lambda server, peer, body, blob: pending.append(later := Later(peer)) or later)
        waits = WAITS | {"request": lambda client, timeout: client.request("ping/never", timeout=timeout)}
        outcome = interrupted_by(server.close, lambda: waits[call](client, PATIENCE))
        assert type(outcome) is JobEnded and "3 samples" in str(outcome), outcome
        assert client.ended
        client.close()

    def test_leaving_a_client_after_the_end_of_the_job_raises_nothing(self, rig: Rig) -> None:
        server, client = owing(rig)
        with client:
            server.close()
            told(client)
        with pytest.raises(ClosedError):
            client.wait()

    def test_the_error_of_a_call_leaves_a_with_block(self, rig: Rig) -> None:
        server, client = owing(rig)
        with pytest.raises(JobEnded), client:
            server.close()
            while True:
                client.send(sample(1, 5))

    def test_close_after_the_end_of_the_job_says_once_what_is_lost(self, rig: Rig) -> None:
        server, client = owing(rig)
        other = rig.client(server)
        server.close()
        told(client, other)
        with pytest.raises(JobEnded, match=r"\b3 samples"):
            client.close()
        client.close()
        other.close()  # it has lost nothing

    @pytest.mark.parametrize("end", GOOD_ENDS)
    def test_leaving_a_server_well_ends_the_job(self, rig: Rig, end: str) -> None:
        server = rig.server()
        client = rig.client(server)
        leave(server, GOOD_ENDS[end])
        told(client)
        assert type(returns(client.wait, PATIENCE)) is JobEnded

    @pytest.mark.parametrize("end", [*BAD_ENDS, "restarting", "drained", "dropped"])
    def test_after_any_other_end_workers_come_back(self, rig: Rig, needs: Needs, end: str) -> None:
        needs("restarts")
        address = rig.place()
        server = rig.server(at=address)
        client = rig.client(server)
        observer = Observer(rig.source(server), timeout=PATIENCE)
        client.send_batch(stacked(1, 0, 8))
        client.wait()
        tally = drain(server, 8)
        if end in BAD_ENDS:
            leave(server, BAD_ENDS[end])
        elif end == "restarting":
            server.close(restarting=True)
        elif end == "drained":
            server.drain()
            server.close()
        else:
            server._abandoned()  # what __del__ calls
        again = rig.server(at=address)
        client.send_batch(stacked(1, 8, 8))
        drain(again, 16, tally).check({1: 16})
        assert not client.ended and not observer.ended
        observer.close()

    def test_a_break_out_of_the_batches_ends_nothing(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 8))
        for _ in server.dataset_iter(timeout=PATIENCE):
            break
        client.send_batch(stacked(1, 8, 8))
        assert server.sample(timeout=PATIENCE) is not None and not client.ended

    def test_observers_are_told_of_the_end_of_the_job(self, rig: Rig) -> None:
        server = rig.server()
        observer = Observer(rig.source(server), timeout=PATIENCE)
        reader = rig.client(server, role="observer")
        waiting = interrupted_by(server.close, lambda: reader.weights())
        assert type(waiting) is JobEnded, waiting
        told(observer, reader)
        for call in (observer.stats, observer.tap, reader.weights, lambda: reader.request("ping")):
            assert type(returns(call, PATIENCE)) is JobEnded
        observer.close()

    def test_relays_pass_the_end_of_the_job_on(self, rig: Rig) -> None:
        learner = rig.server()
        relay = relay_of(rig, learner)
        below = relay_of(rig, relay)
        worker, reader = rig.client(learner, weights=rig.source(relay)), rig.client(below, role="observer")
        published = learner.publish({"w": np.zeros(3)})
        for client in (worker, reader):
            assert client.weights().version == published.version
        outcome = interrupted_by(learner.close, lambda: reader.weights(newer_than=published.version))
        assert type(outcome) is JobEnded, outcome
        told(worker, reader)
        assert type(returns(lambda: worker.weights(newer_than=published.version), PATIENCE)) is JobEnded
        until(lambda: relay.closed and below.closed, "the relays have ended, too", PATIENCE)

    def test_the_end_of_another_job_loses_no_samples(self, rig: Rig) -> None:
        learner = rig.server(batch_size=1, num_buffers=2)
        other = rig.server()
        client = rig.client(learner, weights=rig.source(other))
        client.send_batch(stacked(1, 0, 5))
        other.close()
        until(lambda: isinstance(returns(lambda: client.weights(timeout=0), PATIENCE), JobEnded), "its source of weights has ended", PATIENCE)
        assert not client.ended

        def leave_block() -> None:
            with client:
                pass

        def take_late() -> None:
            time.sleep(1.5)  # longer than a client waits for a learner that has ended its job
            drain(learner, 5).check({1: 5})

        assert interrupted_by(take_late, leave_block) is None

    def test_the_close_of_a_relay_ends_no_job(self, rig: Rig, needs: Needs) -> None:
        needs("restarts")
        where = rig.place()
        learner = rig.server()
        relay = relay_of(rig, learner, at=where)
        client = rig.client(relay)
        learner.publish({"w": np.zeros(3)})
        assert client.weights().version == 1
        relay.close()
        rig.server(at=where, weights_from=rig.source(learner))
        learner.publish({"w": np.ones(3)})
        assert client.weights(newer_than=1).version == 2
        assert not client.ended

    def test_draws_and_batches_of_another_process_end_with_the_job(self, rig: Rig) -> None:
        queues = [echo_core.Table(name, example(), capacity=64, sampler="fifo", rate_limiter=echo_core.Queue(64)) for name in ("first", "second")]
        server = rig.server(tables=queues, batch_size=1)
        client = rig.client(server, tables={"second": example()})
        client.send(sample(1, 0), table="second")
        client.wait()
        assert client.sample(1, table="second").batch["number"].tolist() == [0]
        batches: list[Any] = []
        iterating = threading.Thread(target=lambda: batches.extend([*client.dataset_iter(1), "no further batch"]), daemon=True)
        iterating.start()
        outcome = interrupted_by(server.close, lambda: client.sample(1, PATIENCE))
        assert type(outcome) is JobEnded, outcome
        iterating.join(PATIENCE)
        assert batches == ["no further batch"]
        for call in (
            lambda: client.send(sample(1, 1), table="second"),
            lambda: client.send(sample(1, 1), priority=1.0),
            lambda: client.update_priorities([1], [1.0]),
            lambda: client.table("second").insert(stacked(1, 2, 1)),
        ):
            assert type(returns(call, PATIENCE)) is JobEnded

    def test_a_client_that_serves_ends_with_the_job(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        client.serve("kit/echo", lambda body, blob: (body, blob))
        until(lambda: server.stats()["clients/parked"] == 1, "it waits for a call", PATIENCE)
        server.close()
        told(client)
        threads = [thread for thread in threading.enumerate() if thread.name == "echo-serve-kit/echo"]
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)
        client.close()

    def test_a_request_under_way_at_ones_own_close_says_that_it_was_closed(self, rig: Rig) -> None:
        server = rig.server()
        pending: list[Later] = []
        server.serve("kit/never", lambda server, peer, body, blob: pending.append(later := Later(peer)) or later)
        client = rig.client(server)

        def close() -> None:
            until(lambda: pending, "the request is under way", PATIENCE)
            client.close()

        outcome = interrupted_by(close, lambda: client.request("kit/never"))
        assert type(outcome) is ClosedError, outcome

    def test_a_close_that_waits_for_the_learner_says_so(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        _, client = owing(rig)
        with caplog.at_level(logging.WARNING, "echo"):
            assert isinstance(returns(lambda: client.close(1.5), PATIENCE), (ConnectionClosedError, TimeoutError))
        lines = [record.getMessage() for record in caplog.records if "gives up" in record.getMessage()]
        assert len(lines) == 1 and str(client.address) in lines[0] and "3 samples" in lines[0], lines
        assert "close" in lines[0] and "Ctrl-C or close(timeout=) gives up" in lines[0], lines
