"""The lines of requests that wait at a table: the order in which they are served, the places that are kept, and requests that wait no more."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from echo_core import Queue, Server, Table
from echo_core.base.errors import ClosedError, EchoError, ProtocolError
from echo_core.server.sink import ServerSink
from echo_core.wire.blobs import split
from echo_core.wire.later import Later
from echo_core.wire.peer import Peer
from echo_core.wire.protocol import parse_reply
from echo_replay.requests import waiting_line
from echo_replay.requests.carried_out import CLIENTS, NUMBERS, CarriedOut
from echo_testing.processes import until

pytestmark = pytest.mark.needs("echo-samplers")

EXAMPLE = {"number": np.int64(0)}


@pytest.fixture
def server() -> Any:
    with Server(tables=[Table("queue", EXAMPLE, capacity=4, sampler="fifo", rate_limiter=Queue(4))], batch_size=1) as server:
        yield server


class Asker:
    """A client without a transport. `answers` has what it was answered, by the number of the request: (body, blob) or an error."""

    def __init__(self, server: Server, number: int = 0) -> None:
        self.sink, self.peer = ServerSink(server), Peer(id=f"{number:032x}", name=f"w{number}", address="here", permissions=frozenset(("write", "read")))
        self.sink.connected(self.peer)
        self.answers: dict[int, Any] = {}

    def ask(self, op: str, number: int, n: int = 1, patience: float = 60, blob: bytes = b"", **more: Any) -> None:
        body = {"n": n, "number": number, "patience": patience, **more}
        given = self.sink.request(self.peer, op, body, blob)
        if isinstance(given, Later):
            given.send_to(lambda payload: self._answered(number, b"".join(payload)))
        else:
            self.answers[number] = given[0], given[1] if isinstance(given[1], bytes) else b"".join(given[1])

    def _answered(self, number: int, payload: bytes) -> None:
        try:
            self.answers[number] = parse_reply(payload)
        except EchoError as error:
            self.answers[number] = error

    def drawn(self, number: int) -> list[int]:
        """The items that this request got."""
        until(lambda: number in self.answers, f"request {number} is answered")
        n = len(self.answers[number][1]) // 24
        return split(self.answers[number][1], (np.uint64, (n,)), (np.float64, (n,)), (np.int64, (n,)))[2].tolist()

    def told(self, number: int) -> str:
        """Why this request waits."""
        until(lambda: number in self.answers, f"request {number} is answered")
        return str(self.answers.pop(number)[0]["wait"])


def fill(server: Server, *numbers: int) -> None:
    server.submit_batch({"number": np.array(numbers)})


def waiting(server: Server) -> tuple[Any, Any]:
    stats = server.stats()
    return stats["table/queue/draws_waiting"], stats["table/queue/inserts_waiting"]


def test_who_was_told_why_and_comes_back_has_the_same_place(server: Server) -> None:
    first, second = Asker(server, 1), Asker(server, 2)
    first.ask("sample", 7, patience=1)
    second.ask("sample", 7)
    assert first.told(7).startswith("table 'queue': Queue(4) allows no batch of 1")
    first.ask("sample", 7)
    fill(server, 10)
    assert first.drawn(7) == [10]
    fill(server, 11)
    assert second.drawn(7) == [11]


def test_who_does_not_come_back_loses_the_place_and_holds_nobody_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_line, "KEPT_SECONDS", 0.05)
    first, second = Asker(server, 1), Asker(server, 2)
    first.ask("sample", 1, n=2, patience=0.2)
    second.ask("sample", 1)
    assert "of 2 from 0 items" in first.told(1)
    fill(server, 10)
    assert second.drawn(1) == [10]
    until(lambda: waiting(server) == (0, 0), "its place is given up")


def test_a_request_that_was_withdrawn_is_answered_and_gets_nothing(server: Server) -> None:
    asker = Asker(server)
    asker.ask("sample", 1, n=2)
    asker.ask("sample", 2)
    fill(server, 10)
    assert 2 not in asker.answers, "it waits behind the larger one"
    for number, there in ((1, True), (1, False), (3, False), ([], False)):
        assert asker.sink.request(asker.peer, "withdraw", {"number": number}, b"")[0] == {"withdrawn": there}  # type: ignore[index]
    assert "withdrawn" in asker.told(1)
    assert asker.drawn(2) == [10]
    assert Asker(server, 5).sink.request(asker.peer, "withdraw", {"number": 2}, b"")[0] == {"withdrawn": False}  # type: ignore[index]


def test_nobody_withdraws_or_takes_the_request_of_another(server: Server) -> None:
    first, second = Asker(server, 1), Asker(server, 2)
    first.ask("sample", 1)
    assert second.sink.request(second.peer, "withdraw", {"number": 1}, b"")[0] == {"withdrawn": False}  # type: ignore[index]
    second.ask("sample", 1)
    with pytest.raises(ProtocolError, match="another request with the number 1 waits"):
        second.ask("sample", 1)
    fill(server, 10, 11)
    assert (first.drawn(1), second.drawn(1)) == ([10], [11])


@pytest.mark.parametrize("body", [{"patience": -1}, {"patience": "x"}, {"number": None}, {"number": 1.5}, {"timeout": float("nan")}, {"patience": True}])
def test_a_request_that_may_wait_has_valid_numbers(server: Server, body: dict[str, Any]) -> None:
    asker = Asker(server)
    with pytest.raises(ProtocolError, match="whole number as number, and seconds"):
        asker.sink.request(asker.peer, "sample", {"n": 1, "number": 1, "patience": 1.0} | body, b"")


def test_a_batch_that_never_comes_is_refused_behind_others_too(server: Server) -> None:
    asker = Asker(server)
    asker.ask("sample", 1)
    with pytest.raises(EchoError, match="a batch of 5 can never be drawn"):
        asker.ask("sample", 2, n=5)
    assert waiting(server) == (1, 0)


def test_an_insert_for_which_there_is_room_in_parts_goes_in_order(server: Server) -> None:
    asker = Asker(server)
    fill(server, 0, 1, 2)
    asker.ask("insert", 1, n=5, patience=0.5, timeout=60, blob=np.arange(3, 8).tobytes())
    asker.ask("insert", 2, n=1, blob=np.array([8]).tobytes())
    until(lambda: len(server.table()) == 4, "a part is inserted")
    threading.Event().wait(0.7)
    assert not asker.answers, "what has begun waits for its whole timeout"
    assert [server.sample(60).batch["number"].tolist() for _ in range(9)] == [[number] for number in range(9)]  # type: ignore[union-attr]
    until(lambda: len(asker.answers) == 2, "both are answered")
    assert len(set(np.frombuffer(asker.answers[1][1], np.uint64).tolist())) == 5
    fill(server, 0, 1, 2)
    asker.ask("insert", 3, n=2, patience=0.2, blob=np.arange(2).tobytes())
    until(lambda: 3 in asker.answers, "its patience is over")
    assert str(asker.answers[3]).startswith("1 of 2 items were inserted, then: table 'queue': Queue(4) allows no insert"), asker.answers[3]


def test_an_insert_that_is_repeated_after_a_lost_connection_is_not_carried_out_twice(server: Server) -> None:
    before, after = Asker(server, 1), Asker(server, 1)
    before.ask("insert", 1, blob=np.array([0]).tobytes())
    after.ask("insert", 1, blob=np.array([0]).tobytes(), again=True)
    assert after.answers[1][0] == {"carried_out": "yes"}
    after.ask("insert", 2, blob=np.array([1]).tobytes(), again=True)
    assert len(after.answers[2][1]) == 8 and len(server.table()) == 2


def test_a_client_hears_of_items_of_a_queue_that_were_lost_with_the_connection(server: Server) -> None:
    before, after = Asker(server, 1), Asker(server, 1)
    before.ask("sample", 1)
    fill(server, 10, 11)
    assert before.drawn(1) == [10]
    after.ask("sample", 1, again=True)
    assert after.answers[1][0] == {"carried_out": "yes"} and len(server.table()) == 1
    after.ask("sample", 2, again=True)
    assert after.drawn(2) == [11]
    with Server(tables=[Table("often", EXAMPLE, capacity=4, sampler="fifo")], batch_size=1) as other:
        fill(other, 10)
        again = Asker(other)
        for _ in range(2):
            again.ask("sample", 1, again=True)
            assert again.drawn(1) == [10], "nothing is lost if items stay in the table"


def test_what_was_carried_out_is_remembered_as_long_as_it_is_safe() -> None:
    done = CarriedOut()
    peers = [Peer(id=f"{number:032x}", name="", address="") for number in range(CLIENTS + 1)]
    for number in range(2 * NUMBERS):
        done.add(peers[0], number)
        done.add(peers[0], number)
    assert [done.by(peers[0], number) for number in (0, NUMBERS - 1, NUMBERS, 2 * NUMBERS - 1, 2 * NUMBERS, "x")] == [
        "unknown", "unknown", "yes", "yes", "", "unknown",
    ]
    assert done.by(peers[1], 1) == ""
    for peer in peers[1:]:
        done.add(peer, 1)
    assert (done.by(peers[0], 2 * NUMBERS), done.by(peers[1], 1), done.by(peers[1], 2)) == ("unknown", "yes", "")


def test_a_request_that_ends_items_is_carried_out_once_and_its_answer_is_remembered() -> None:
    done, counts = CarriedOut(), iter(range(10 * CLIENTS))
    peers = [Peer(id=f"{number:032x}", name="", address="") for number in range(CLIENTS + 1)]

    def ask(peer: Peer, **body: Any) -> Any:
        return done.once(peer, body, lambda: {"ended": next(counts)})

    assert [ask(peers[0]), ask(peers[0], number=1)] == [{"ended": 0}, {"ended": 1}]
    assert [ask(peers[0], number=number, again=True) for number in (1, 2, 2)] == [{"ended": 1}, {"ended": 2}, {"ended": 2}]
    assert ask(peers[1], number=1, again=True) == {"ended": 3}, "another client"
    for number in range(3, 3 + NUMBERS):
        ask(peers[0], number=number)
    assert ask(peers[0], number=2, again=True) == {"carried_out": "unknown"}
    for peer in peers[1:]:
        ask(peer, number=5)
    assert ask(peers[0], number=3 + NUMBERS, again=True) == {"carried_out": "unknown"}, "this client is forgotten"


def test_a_client_that_leaves_is_out_of_the_line(server: Server) -> None:
    first, second = Asker(server, 1), Asker(server, 2)
    first.ask("sample", 1)
    second.ask("sample", 1)
    first.sink.lost(first.peer, "")
    assert waiting(server) == (1, 0)
    fill(server, 10)
    assert second.drawn(1) == [10] and not first.answers


def test_a_closed_table_and_a_closing_server_answer_everybody() -> None:
    tables = [Table(name, EXAMPLE, capacity=4, sampler="fifo", rate_limiter=Queue(4)) for name in ("queue", "other")]
    before = threading.active_count()
    with Server(tables=tables, batch_size=1) as server:
        asker = Asker(server)
        for number in range(3):
            asker.ask("sample", number)
        server.submit_batch({"number": np.arange(4)}, table="other")
        asker.ask("insert", 3, table="other", blob=np.array([0]).tobytes())
        asker.ask("sample", 4, n=3)
        server.table("queue").close()
        until(lambda: len(asker.answers) == 4, "the closed table answers")
        assert [asker.answers[number][0] for number in (0, 1, 2, 4)] == [{"closed": True}] * 4
    assert isinstance(asker.answers[3], ClosedError)
    until(lambda: threading.active_count() == before, "its threads have ended")


def test_draws_wait_through_a_checkpoint(server: Server, tmp_path: Any) -> None:
    asker = Asker(server)
    asker.ask("sample", 1, n=2)
    fill(server, 10)
    server.checkpoint(tmp_path)
    fill(server, 11)
    assert asker.drawn(1) == [10, 11]
    with Server(tables=[Table("queue", EXAMPLE, capacity=4, sampler="fifo", rate_limiter=Queue(4))], batch_size=1) as other:
        late = Asker(other)
        late.ask("sample", 1)
        other.restore(tmp_path)
        assert late.drawn(1) == [10]


def test_items_that_come_back_are_drawn_by_who_waits() -> None:
    queue = Table("queue", EXAMPLE, capacity=4, sampler="fifo", rate_limiter=Queue(4), lease_timeout=0.5)
    with Server(tables=[queue], batch_size=1) as server:
        fill(server, 10, 11)
        first, second = Asker(server, 1), Asker(server, 2)
        first.ask("sample", 1)
        first.ask("sample", 2)
        second.ask("sample", 1)
        second.ask("sample", 2)
        assert second.drawn(1) == [10] and second.drawn(2) == [11], "their time is over, which nobody signals"
        third = Asker(server, 3)
        third.ask("sample", 1)
        second.sink.lost(second.peer, "")
        assert third.drawn(1) == [10]


def test_what_is_served_leaves_nothing_behind(server: Server) -> None:
    asker = Asker(server)
    lines = server._of_storages[server.table().name].lines
    for number in range(500):
        asker.ask("sample", number, patience=1000)
        fill(server, number)
        assert asker.drawn(number) == [number]
    assert waiting(server) == (0, 0) and len(lines._ends) < 100
    assert all(entry[3].want is None for entry in lines._ends)
    assert server.client_memory.stats()["held_bytes"] == 0
