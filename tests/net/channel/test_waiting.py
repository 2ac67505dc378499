"""Full stores, closing, forks: each waiting call is told why, and returns."""

from __future__ import annotations

import math
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pytest
from local_net import SPEC, Consumer, connect, raw, serve

from echo_core.base import waiting as base_waiting
from echo_core.base.errors import ClosedError, ConfigError, EchoTimeoutError, ForkError
from echo_core.server.statistics import metrics, waiting_workers
from echo_core.wire.protocol import Kind, frame, pack_header
from echo_net.channel import connection as connection_module
from echo_net.channel.connection import ChannelConnection
from echo_net.channel.link import wait_until
from echo_testing.processes import forked, returns, until
from echo_testing.samples import Tally, sample, stacked

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]


def fill(connection: ChannelConnection) -> int:
    """Send until nothing more is taken; how many were."""
    taken = 0
    with suppress(EchoTimeoutError):
        while True:
            connection.send(sample(0, taken), timeout=0.2)
            taken += 1
    return taken


def test_a_full_store_holds_the_worker_back_and_says_so() -> None:
    with serve(batch_size=2, num_buffers=2) as server, connect(max_inflight_msgs=3) as connection:
        taken = fill(connection)
        assert taken == 4 + 3
        for call in (
            lambda: connection.send(sample(0, taken), timeout=0.05),
            lambda: connection.send_batch(stacked(0, taken, 2), timeout=0.05),
            lambda: connection.wait(0.05),
            lambda: connection.weights(0.05),
        ):
            with pytest.raises(EchoTimeoutError, match=r"waits for the learner at local://learner \(3 samples"):
                call()
        assert connection.stats()["send_blocked"] >= 2
        assert server.peers()[0].state == "waiting for space"
        tally = Tally()
        for _ in range(3):
            tally.add(server.sample(10).batch)
        connection.wait()
        connection.send(sample(0, taken))
        tally.add(server.sample(10).batch)
        tally.check({0: taken + 1})


def test_waiting_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (base_waiting, waiting_workers):
        monkeypatch.setattr(module, "LOG_AFTER", 0.05)
    monkeypatch.setattr(metrics.StatsTicker, "INTERVAL", 0.05)
    with serve(batch_size=2, num_buffers=2) as server, connect(max_inflight_msgs=2) as connection:
        taken = fill(connection)
        until(lambda: "worker w has waited" in caplog.text, "the learner says so too")
        (line,) = [message for message in caplog.messages if "worker w has waited" in message]
        assert line.endswith("s for space: " + server._storage().why_full()) and "4 samples wait in 2 of 2 batch buffers" in line
        caplog.clear()
        with pytest.raises(EchoTimeoutError):
            connection.send(sample(0, taken), timeout=0.5)
        lines = [record.message for record in caplog.records if "send() waits for" in record.message]
        assert len(lines) == 1
        for _ in range(taken // 2):
            server.sample(10)


def test_who_waits_for_room_is_not_woken_by_what_is_written() -> None:
    with serve(batch_size=2, num_buffers=2) as server, connect(max_inflight_msgs=3) as connection:
        taken = fill(connection)
        up, looks = connection.uplink, []
        has_room = up.window.has_room
        up.window.has_room = lambda count: bool(looks.append(count)) or has_room(count)  # type: ignore[method-assign]
        sending = threading.Thread(target=connection.send, args=(sample(0, taken),))
        sending.start()
        until(lambda: len(looks) == 2, "it looks before it sleeps")
        link = up.link
        assert link is not None
        for _ in range(20):
            with up.gate.lock:
                link.post(frame(Kind.PING))
            until(link.idle, "it is written")
        assert len(looks) == 2
        for _ in range((taken + 1) // 2):
            server.sample(10)
        sending.join()


def test_a_worker_that_stops_in_the_middle_of_a_sample_holds_up_nobody() -> None:
    with serve(batch_size=10) as server, raw() as slow:
        _, payload = SPEC.flattener.batch_tobytes(stacked(9, 0, 5))
        whole = pack_header(Kind.DATA, count=5, seq=1, length=len(payload)) + payload
        slow.sock.sendall(whole[:-1])
        with connect() as quick:
            consumer = Consumer(server)
            for i in range(1000):
                quick.send(sample(0, i))
            quick.wait()
            states = {peer.name: peer.state for peer in server.peers()}
            assert states == {"raw": "half a message", "w": "streaming"}
            slow.sock.sendall(whole[-1:])
            assert slow.read(Kind.ACK).seq == 5
            quick.send_batch(stacked(0, 1000, 5))
            consumer.check({0: 1005, 9: 5})


def test_a_worker_that_never_reads_holds_up_nobody() -> None:
    """It subscribes to weights and reads none of them; the learner goes on publishing."""
    with serve(batch_size=10) as server, raw() as deaf:
        deaf.sock.sendall(frame(Kind.SUBSCRIBE))
        with connect() as quick:
            for version in range(1, 4):
                returns(lambda: server.publish({"w": np.zeros(1_000_000)}))
                assert quick.weights(10, newer_than=version - 1).version == version
            quick.send_batch(stacked(0, 0, 10))
            quick.wait()
            deaf.send(1, 1)
            until(lambda: server.stats()["store/samples_inserted_total"] == 11, "it can still send")


def test_closing_the_server_lets_go_of_everybody() -> None:
    server = serve(batch_size=2, num_buffers=2)
    with raw() as silent, raw(client_id="d" * 32) as blocked:
        blocked.send(1, 9)
        until(lambda: any(peer.state == "waiting for space" for peer in server.peers()), "full")
        returns(lambda: server.close(0.2))
        assert silent.gone() and blocked.gone()
        assert server.peers() == []
    server.close()


def test_closing_the_server_commits_what_has_come_whole() -> None:
    server = serve(batch_size=10)
    with raw() as worker:
        worker.send(1, 20)
        worker.read(Kind.ACK)
        server.close()
        _, reason = worker.read_payload(Kind.BYE)
        assert reason == b"the learner has ended the job" and worker.gone()
    assert [server.sample(1).batch["number"].tolist() for _ in range(2)] == [[*range(10)], [*range(10, 20)]]


def test_a_timeout_below_zero_is_refused() -> None:
    with serve() as server, connect() as connection:
        for bad in (-1, math.nan):
            for call in (connection.wait, connection.flush, connection.weights, connection.close):
                with pytest.raises(ValueError, match="timeout must be at least 0"):
                    call(bad)
            with pytest.raises(ConfigError, match="timeout must be at least 0"):
                connect(timeout=bad)
        connection.send_batch(stacked(0, 0, 2), timeout=math.inf)
        assert server.sample(10)


@pytest.mark.parametrize("option", [{"window_bytes": 0}, {"max_inflight_msgs": -1}, {"client_id": "me"}, {"windw_bytes": 1}])
def test_an_unusable_option_is_named(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        connect(**option)


def test_use_after_close() -> None:
    with serve():
        connection = connect()
        connection.close()
        connection.close()
        for call in (
            lambda: connection.send(sample(0, 0)),
            lambda: connection.send_batch(stacked(0, 0, 2)),
            connection.flush,
            connection.wait,
            connection.weights,
            lambda: connection.request("ping", {}),
        ):
            with pytest.raises(ClosedError, match="closed"):
                call()


def test_close_cuts_short_the_calls_of_other_threads() -> None:
    with serve(batch_size=2, num_buffers=2) as server:
        connection = connect(max_inflight_msgs=1)
        taken = fill(connection)
        outcome: list[Any] = []
        calls = [lambda: connection.send(sample(0, taken), math.inf), lambda: connection.weights(math.inf)]
        threads = [threading.Thread(target=lambda c=call: outcome.append(returns(c))) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        with pytest.raises(EchoTimeoutError):
            connection.close(0.2)
        for thread in threads:
            thread.join()
        assert [type(one) for one in outcome] == [ClosedError, ClosedError]
        server.close()


def test_a_forked_child_is_told_and_harms_nobody() -> None:
    with serve(batch_size=4) as server, connect() as connection:
        connection.send_batch(stacked(0, 0, 2))
        connection.wait()

        def child() -> None:
            for call in (lambda: connection.send(sample(0, 9)), connection.wait, connection.weights):
                with pytest.raises(ForkError, match="make a new Client in the child"):
                    call()
            connection.close()

        forked(child)
        connection.send_batch(stacked(0, 2, 2))
        assert server.sample(10).batch["number"].tolist() == [0, 1, 2, 3]


def test_a_connection_nobody_closed_is_closed_with_a_warning() -> None:
    with serve() as server:
        connection = connect()
        connection.send_batch(stacked(0, 0, 2))
        with pytest.warns(ResourceWarning, match="unclosed connection to local://learner"):
            del connection
        assert server.sample(10).batch["number"].tolist() == [0, 1]
        until(lambda: not server.peers(), "it has left")


def test_where_warnings_are_errors_it_is_closed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: raised.append(str(what.exc_value)))
    with serve() as server, warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        connection = connect()
        connection.send_batch(stacked(0, 0, 2))
        del connection
        assert [text.partition(";")[0] for text in raised] == ["unclosed connection to local://learner"]
        assert server.sample(10).batch["number"].tolist() == [0, 1]
        until(lambda: not server.peers(), "it has left")


@pytest.mark.parametrize("action", ["always", "error"])
def test_at_exit_every_connection_is_closed_even_where_warnings_are_errors(action: Literal["always", "error"], monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        left_open = [connect(), connect()]
        monkeypatch.setattr(connection_module, "_open", set(left_open))
        warned = pytest.warns if action == "always" else pytest.raises
        with warnings.catch_warnings(), warned(ResourceWarning, match="unclosed connection to local://learner"):
            warnings.simplefilter(action, ResourceWarning)
            connection_module._at_exit()
        assert all(connection.uplink.closing for connection in left_open)
        until(lambda: not server.peers(), "both have said goodbye")


def test_wait_until_keeps_the_time() -> None:
    gate = threading.Condition()
    with gate:
        wait_until(gate, lambda: True, 0, lambda: "nobody waits")
        with pytest.raises(EchoTimeoutError, match=r"^a waits for b; gave up after 0.05 s; wait longer \(timeout=\)$"):
            wait_until(gate, lambda: False, 0.05, lambda: "a waits for b")


@pytest.mark.parametrize("given, farewell", [(0.0, 0.05), (0.3, 0.05), (1.2, 0.05)])
def test_a_goodbye_to_a_full_store_has_only_the_rest_of_the_time(given: float, farewell: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(batch_size=2, num_buffers=2) as server:
        connection = connect(max_inflight_msgs=3)
        taken, up = fill(connection), connection.uplink
        goodbyes: list[float] = []
        say = up._say_goodbye
        monkeypatch.setattr(up, "_say_goodbye", lambda seconds: goodbyes.append(seconds) or say(seconds))
        with pytest.raises(EchoTimeoutError, match="closed with 3 samples not acknowledged"):
            connection.close(given)
        assert goodbyes == [farewell] and taken == 7
        assert server.sample(10) is not None


def test_a_goodbye_to_a_learner_that_takes_all_may_last_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(batch_size=2, num_buffers=2):
        connection = connect()
        connection.send(sample(0, 0))
        goodbyes: list[float] = []
        say = connection.uplink._say_goodbye
        monkeypatch.setattr(connection.uplink, "_say_goodbye", lambda seconds: goodbyes.append(seconds) or say(seconds))
        connection.close(600)
        assert goodbyes == [1.0]
