"""Keys name items of one table for good: a table that takes the place of another one gives its new items other keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, NStep, Queue, Server, Table
from echo_testing.ports import free_port

EXAMPLE = {"x": np.float32(0)}

pytestmark = pytest.mark.needs("echo-samplers", "echo-tcp")


def server(kind: str = "prioritized", capacity: int = 100, port: int = 0, **more: Any) -> Server:
    limiter = Queue(capacity) if kind == "fifo" else None
    table = Table("t", EXAMPLE, capacity=capacity, sampler=kind, rate_limiter=limiter, seed=0, **more)
    return Server(tables=[table], batch_size=4, transport=f"tcp://127.0.0.1:{port}").start()


def rows(start: int, count: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(start, start + count, dtype=np.float32)}


@pytest.mark.parametrize("capacity", [100, 1 << 17])
def test_keys_of_a_server_that_is_gone_do_nothing_at_its_successor(capacity: int) -> None:
    port = free_port()
    first = server(capacity=capacity, port=port)
    with Client(first.address, EXAMPLE, table="t") as learner:
        first.submit_batch(rows(0, 10))
        old = learner.sample(4).keys
        first.close(restarting=True)
        with server(capacity=capacity, port=port) as second:
            second.submit_batch(rows(100, 10))
            before = second.table().top(10)
            assert learner.update_priorities(old, np.full(4, 1000.0), timeout=20) == 4
            remote = learner.table()
            assert remote.delete(old) == 0 and not remote.peek(old)[1].any()
            assert not remote.update_items(old, {"x": np.zeros(4, np.float32)}).any()
            after = second.table().top(10)
            assert after[0].tolist() == before[0].tolist() and after[1].tolist() == before[1].tolist()
            batch, here = second.table().peek(second.table().keys())
            assert here.all() and sorted(batch["x"]) == [*range(100, 110)]


def test_acknowledgements_of_a_dead_server_s_items_end_no_loan() -> None:
    port = free_port()
    first = server("fifo", port=port, lease_timeout=30.0)
    with Client(first.address, EXAMPLE, table="t") as learner:
        first.submit_batch(rows(0, 8))
        old = learner.sample(4).keys
        first.close(restarting=True)
        with server("fifo", port=port, lease_timeout=30.0) as second, Client(second.address, EXAMPLE, table="t") as other:
            second.submit_batch(rows(100, 8))
            lent = other.sample(4).keys
            assert second.stats()["table/t/on_loan"] == 4
            assert learner.ack(old, timeout=20) == 0
            assert second.stats()["table/t/on_loan"] == 4
            assert other.ack(lent) == 4


@pytest.mark.parametrize("capacity", [16, 1 << 17])
def test_one_checkpoint_restored_twice(tmp_path: Path, capacity: int) -> None:
    """Its items keep their keys in both servers, and the two servers' new items have different ones."""
    with server(capacity=capacity) as first:
        kept = first.submit_batch(rows(0, 10))
        first.checkpoint(tmp_path)
        lost = first.submit_batch(rows(10, 6))
    seen: list[set[int]] = [{*lost.tolist()}]
    for _ in range(2):
        with server(capacity=capacity) as restored:
            restored.restore(tmp_path)
            table = restored.table()
            assert table.keys().tolist() == kept.tolist()
            new = {*table.submit_batch(rows(20, 6)).tolist()}
            for _ in range(3):  # rows are used again
                table.delete(table.keys())
                new |= {*table.submit_batch(rows(30, 16)).tolist()}
            assert len(new) == 6 + 3 * 16 and not new & {*kept.tolist()}
            assert not table.peek(kept)[1].any() and not table.peek(lost)[1].any()
            assert not any(new & others for others in seen)
            seen.append(new)


def test_keys_of_two_restored_tables_of_steps_differ(tmp_path: Path) -> None:
    step = {"x": np.float32(0), "reward": np.float32(0)}

    def steps() -> Server:
        return Server(tables=[Table("s", step, capacity=64, items=NStep(1), sampler="uniform", seed=0)], batch_size=2).start()

    def send(to: Server, n: int) -> None:
        data = {"x": np.zeros(n, np.float32), "reward": np.zeros(n, np.float32)}
        to.table().writer().send_batch(data, stream=0, ends=[None] * (n - 1) + ["terminated"])

    with steps() as first:
        send(first, 20)
        kept = first.table().keys()
        first.checkpoint(tmp_path)
    found = []
    for _ in range(2):
        with steps() as restored:
            restored.restore(tmp_path)
            assert restored.table().keys().tolist() == kept.tolist()
            send(restored, 60)
            found.append({*restored.table().keys().tolist()} - {*kept.tolist()})
    assert found[0] and found[1] and not found[0] & found[1]


def test_keys_are_numbers_that_numpy_makes_whole_numbers_of() -> None:
    """A list of numbers of which some are below 2**63 and some are not would become float64."""
    for capacity in (16, 1 << 17):
        with server(capacity=capacity) as one:
            assert (one.submit_batch(rows(0, 10)) < 1 << 63).all()
