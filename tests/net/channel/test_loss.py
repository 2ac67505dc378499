"""Connections that are cut: nothing is lost or doubled, and what cannot go on says so."""

from __future__ import annotations

import queue
import random
import socket
import threading
from contextlib import suppress

import pytest
from local_net import SPEC, TOKEN, Consumer, connect, net, raw, serve

from echo_core.base.errors import ConnectionClosedError, HandshakeRefused, JobEnded, SpecError
from echo_core.wire.protocol import MORE, Kind
from echo_net.channel.window import Window
from echo_net.handshake import ServerHandshake
from echo_testing.processes import returns, until
from echo_testing.samples import Tally, example, sample, stacked

pytestmark = pytest.mark.needs("echo-samplers")


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_or_doubled_across_cut_connections(seed: int) -> None:
    rng = random.Random(seed)
    count = 5000
    with serve(batch_size=50) as server:
        consumer = Consumer(server)
        # Bytes a connection lives for: it is cut in the handshake, between frames, within one.
        net.budget = (rng.choice([rng.randrange(1000), rng.randrange(50_000)]) for _ in range(40))
        with connect(max_inflight_msgs=1000, timeout=60) as connection:
            i = 0
            while i < count:
                n = min(rng.choice([1, 1, 1, 7, 400]), count - i)
                connection.send_batch(stacked(0, i, n)) if n > 1 else connection.send(sample(0, i))
                i += n
                if rng.random() < 0.01:
                    net.cut()
        stats = connection.stats()
        assert stats["acknowledged"] == count and stats["reconnects"] > 0
        consumer.check({0: count})
        assert server.stats()["store/samples_inserted_total"] == count


def test_acknowledgements_that_were_lost_are_made_up_for() -> None:
    """The learner commits, and the connection is cut before the worker hears of it."""
    with serve(batch_size=10) as server:
        with raw() as first:
            first.send(1, 10)
            until(lambda: server.stats()["store/samples_inserted_total"] == 10, "ten samples")
        with raw(base=0) as again:
            assert again.resume == 10
            again.send(1, 15)  # as a worker does that has not read the ACK
            assert again.read(Kind.ACK).seq == 15
            again.send(3, 4)
            assert again.read(Kind.ACK).seq == 15
        tally = Tally()
        tally.add(server.sample(10).batch)
        tally.check({0: 10})
        stats = server.stats()
        assert stats["store/samples_inserted_total"] == 15
        assert stats["transport/local/duplicates"] == 10 + 4


def test_frames_that_others_follow_are_acknowledged_with_them() -> None:
    with serve(batch_size=10) as server, raw() as worker:
        worker.send(1, 3, flags=MORE)
        worker.send(4, 2, flags=MORE)
        until(lambda: server.stats()["store/samples_inserted_total"] == 5, "five samples")
        worker.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            worker.read(Kind.ACK)
        worker.sock.settimeout(10)
        worker.send(6, 1)
        assert worker.read(Kind.ACK).seq == 6


def test_a_gap_in_the_numbers_is_refused() -> None:
    with serve() as server, raw() as worker:
        worker.send(2, 1)
        assert worker.gone()
        assert server.stats()["transport/local/protocol_errors"] == 1
        assert server.stats()["store/samples_inserted_total"] == 0


def test_a_returning_worker_evicts_its_old_connection_first() -> None:
    """The old one is blocked on the full store with samples that the new one will send again."""
    with serve(batch_size=2, num_buffers=2) as server, raw() as old:
        old.send(1, 7)  # four fit
        assert old.read(Kind.ACK).seq == 4
        until(lambda: server.peers()[0].state == "waiting for space", "the store is full")
        with raw() as new:
            assert new.resume == 4 and old.gone()
            assert [peer.id for peer in server.peers()] == ["a" * 32]
            new.send(5, 4)
            tally = Tally()
            for _ in range(4):
                tally.add(server.sample(10).batch)
            tally.check({0: 8})


def test_the_next_client_with_an_id_numbers_its_own_samples() -> None:
    with serve(batch_size=10) as server:
        with connect(client_id="b" * 32) as connection:
            connection.send_batch(stacked(0, 0, 3))
        with connect(client_id="b" * 32) as connection:
            connection.send_batch(stacked(0, 3, 7))
            connection.wait()
            assert server.peers()[0].samples == 7
        tally = Tally()
        tally.add(server.sample(10).batch)
        tally.check({0: 10})


def test_a_learner_that_comes_back_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    first = serve(batch_size=10)
    with connect(timeout=30) as connection:
        connection.send_batch(stacked(0, 0, 10))
        connection.wait()
        first.close(restarting=True)
        until(lambda: not connection.stats()["connected"], "the worker hears of it")
        connection.send_batch(stacked(0, 10, 10))
        with serve(batch_size=10) as second:
            assert second.sample(10).batch["number"].tolist() == list(range(10, 20))
            connection.wait()
            stats = connection.stats()
            assert (stats["learner_restarts"], stats["reconnects"]) == (1, 1)
    assert "the learner is closing" in caplog.text


def test_a_learner_that_stays_away_ends_the_connection() -> None:
    server = serve()
    connection = connect(timeout=0.5)
    server.close(restarting=True)
    connection.send(sample(0, 0))
    for call in (lambda: connection.wait(10), connection.flush, connection.weights, connection.close):
        error = returns(call)
        assert isinstance(error, ConnectionClosedError), error
    assert "1 sample not acknowledged" in str(error) and "local://learner" in str(error)


def test_a_worker_that_comes_back_when_the_job_has_ended_is_told_so() -> None:
    server = serve()
    connection = connect(timeout=30)
    arriving: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()

    def refuse() -> None:
        while (sock := arriving.get()) is not None:
            with sock, suppress(OSError):  # a worker whose time is over has hung up
                sock.recv(65536)
                sock.sendall(ServerHandshake(SPEC, [TOKEN]).refuse("ended", "the learner has ended the job"))

    refusing = threading.Thread(target=refuse)
    refusing.start()
    server.close(restarting=True)
    connection.send(sample(0, 0))
    net.listening["learner"] = arriving
    try:
        until(lambda: connection.ended, "it is told")
        with pytest.raises(JobEnded, match="1 sample was not acknowledged"):
            connection.wait()
        with pytest.raises(HandshakeRefused, match="ended the job"):  # one that was never connected waits, as for every learner that is not there
            connect(timeout=0.3)
    finally:
        del net.listening["learner"]
        arriving.put(None)
        refusing.join()
        connection.close()


def test_without_reconnecting_a_loss_is_final() -> None:
    with serve():
        connection = connect(reconnect=False)
        net.cut()
        taken = 0
        with pytest.raises(ConnectionClosedError, match="gone"):
            while True:
                connection.send(sample(0, 0))
                taken += 1
        if taken:  # the loss may have been heard of before the first
            with pytest.raises(ConnectionClosedError, match="samples? not acknowledged"):
                connection.close()
        else:
            connection.close()


def test_whoever_has_seen_the_final_error_cannot_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window without a lock (its `take` needs none) must have stopped before any call can raise the error of the session."""
    stop = Window.stop
    seen: list[object] = []

    def stop_late(window: Window) -> None:
        seen.append(returns(connection.check, 5))
        stop(window)

    with serve(), connect(reconnect=False) as connection:
        connection.send(sample(0, 0))
        connection.wait()
        monkeypatch.setattr(Window, "stop", stop_late)
        net.cut()
        assert isinstance(returns(connection.wait, 10), ConnectionClosedError | type(None))
        until(lambda: bool(seen), "the end of the session")
        monkeypatch.undo()
        with pytest.raises(ConnectionClosedError):
            connection.send(sample(0, 1))
    assert seen[0] is None


def test_a_learner_with_another_spec_in_its_place_is_refused() -> None:
    server = serve()
    connection = connect()
    server.close(restarting=True)
    with serve(example(7)):
        with pytest.raises(SpecError, match="filler"):
            connection.weights(10)
        with pytest.raises(SpecError, match="filler"):
            connection.send(sample(0, 0))
    connection.close()


def test_closing_in_the_middle_of_reconnecting() -> None:
    server = serve()
    connection = connect()
    server.close(restarting=True)
    until(lambda: not connection.stats()["connected"], "the worker hears of it")
    connection.send(sample(0, 0))
    with pytest.raises(ConnectionClosedError, match="1 sample not acknowledged"):
        connection.close(0.1)
