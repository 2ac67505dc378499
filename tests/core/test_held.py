"""What a server keeps for a client from one request to the next, and the budget for it."""

from __future__ import annotations

import numpy as np
import pytest

import echo_core
from echo_core import Client, EchoError, Server
from echo_core.base.memory.client_memory import ClientMemory
from echo_core.server import held as held_module
from echo_core.server.held import Held
from echo_core.wire.peer import Peer
from echo_testing.processes import until

pytestmark = pytest.mark.every_python


def peer(memory: ClientMemory, held: Held, name: str = "worker") -> Peer:
    made = Peer(id="0" * 32, name=name, address="here")
    held.open(made, memory)
    return made


def keep(held: Held, of: Peer, key: object, size: int) -> None:
    held.make_room(of, size)
    held.keep(of, key, f"value of {key}", size)


def test_values_belong_to_one_client_until_they_are_dropped() -> None:
    memory, held = ClientMemory(1000), Held()
    one, two = peer(memory, held), peer(memory, held)
    keep(held, one, 7, 100)
    assert held.get(one, 7) == "value of 7" and held.get(two, 7) is None and held.get(one, 8) is None
    assert memory.stats()["held_bytes"] == 100
    keep(held, one, 7, 50)
    assert memory.stats()["held_bytes"] == 50, "the new value replaces the old one"
    held.drop(one, 7)
    held.drop(one, 7)
    assert held.get(one, 7) is None and memory.stats()["held_bytes"] == 0
    keep(held, one, 9, 100)
    held.forget(one)
    assert held.get(one, 9) is None and memory.stats()["held_bytes"] == 0
    with pytest.raises(EchoError, match="has ended"):
        held.make_room(one, 1)
    held.keep(one, 10, "late", 1)
    assert held.get(one, 10) is None, "nothing is kept for a client that has left"


def test_a_client_beyond_its_share_loses_what_it_left_longest_and_then_gets_an_error() -> None:
    memory, held = ClientMemory(400), Held()
    one = peer(memory, held)
    for key in range(4):
        keep(held, one, key, 25)
    held.get(one, 0)
    keep(held, one, 4, 25)
    assert [key for key in range(5) if held.get(one, key)] == [0, 2, 3, 4]
    with pytest.raises(EchoError, match=r"would hold .* one connection may make it hold 100; .*Server\(client_memory=\)"):
        held.make_room(one, 101)
    assert memory.stats()["held_bytes"] == 100 and memory.stats()["refused_total"] == 1


def test_beyond_the_limit_the_client_that_holds_most_is_cut_off() -> None:
    memory = ClientMemory(400)
    ended: list[str] = []
    small, large, third, fourth, fifth = (
        memory.account(name, lambda name=name: ended.append(name)) for name in ("small", "large", "third", "fourth", "fifth")
    )
    for account, size in ((small, 80), (large, 100), (third, 90), (fourth, 90)):
        account.take(size)
    fifth.take(50)
    assert ended == ["large"] and large.closed and large.held == 0
    with pytest.raises(EchoError, match="holds as much memory for its clients as it may"):
        memory.account("sixth", lambda: None).take(100)
    assert ended == ["large"], "who would hold most itself ends nobody"
    memory.account("seventh", lambda: None).take(91 - 1)
    fifth.take(40)
    assert ended == ["large", "third"], "of clients that hold the same, the one that was idle for longest"


def test_what_nobody_asks_for_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, held = ClientMemory(400), Held()
    one = peer(memory, held)
    keep(held, one, 1, 25)
    assert 19 < held.expire() <= 20, "nothing can expire before"
    assert held.get(one, 1)
    monkeypatch.setattr(held_module, "FRESH_SECONDS", -1.0)
    held.expire()
    assert held.get(one, 1) is None and memory.stats()["held_bytes"] == 0


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1 GiB"])
def test_a_budget_is_a_whole_number_of_bytes(limit: object) -> None:
    with pytest.raises(ValueError, match="client_memory must be a whole number of bytes"):
        ClientMemory(limit)  # type: ignore[arg-type]


@pytest.mark.needs("echo-samplers", "echo-tcp")
def test_readers_that_leave_large_draws_unfetched_stay_within_the_budget() -> None:
    example = {"x": np.zeros(64 << 10, np.uint8)}
    table = echo_core.Table("a", example, capacity=10, sampler="uniform")
    with Server(tables=[table], batch_size=2, transport="tcp://127.0.0.1:0", client_memory=16 << 20) as server:
        server.submit_batch({"x": np.ones((10, 64 << 10), np.uint8)})
        clients = [Client(server.address, example, table="a") for _ in range(6)]
        try:
            for client in clients:
                body, _ = client.request("sample", {"table": "a", "n": 50, "batch": 1, "start": 0, "rows": 1})
                assert "wait" not in body
            until(lambda: clients[0].stats()["reconnects"] == 1, "the client that was idle for longest was cut off, and has come back")
            with pytest.raises(EchoError, match="one connection may make it hold"):
                clients[0].sample(100)
            stats = server.stats()
            assert 0 < stats["clients/held_bytes"] <= stats["clients/limit_bytes"] == 16 << 20
            assert stats["clients/refused_total"] == 1 and stats["clients/cut_off_total"] == 1
            gone, _ = clients[0].request("sample", {"table": "a", "n": 50, "batch": 1, "start": 1, "rows": 1})
            assert gone == {"gone": True}
        finally:
            for client in clients:
                client.close()
    assert server.client_memory.stats()["held_bytes"] == 0


def test_who_only_reserves_pushes_out_nobody() -> None:
    memory, held = ClientMemory(400), Held()
    accounts = [peer(memory, held, f"w{number}").memory for number in range(5)]
    for account in accounts[:4]:
        account.take(100, push_out=False)
    with pytest.raises(EchoError, match="as much memory for its clients as it may"):
        accounts[4].take(100, push_out=False)
    assert not any(account.closed for account in accounts)
    accounts[4].take(100)
    assert [account.closed for account in accounts] == [True, False, False, False, False], "without this, the one that was not used for longest goes"
