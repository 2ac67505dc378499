"""The pure-Python door into the store: claim a slot, fill it in place, commit."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

from echo_core import ClosedError, EchoTimeoutError, ForkError, Server
from echo_core.server.sink import ServerSink
from echo_testing.samples import Tally, example, sample, stacked

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]  # a server needs one

TREE = {"a": np.zeros(3, np.int32), "b": np.zeros((), np.float64), "empty": np.zeros((0, 2), "f4")}


def opened(tree: Any = TREE, batch_size: int = 2, num_buffers: int = 3) -> tuple[Server, ServerSink]:
    server = Server(tree, batch_size, num_buffers=num_buffers)
    return server, ServerSink(server)


def fill(slot: Any, spec: Any, one: Any) -> None:
    for index, leaf in enumerate(spec.flattener.flatten(one)):
        slot.buffer(index)[:] = leaf.tobytes()


def test_a_slot_is_filled_leaf_by_leaf() -> None:
    server, sink = opened(example(), batch_size=4)
    for number in range(4):
        with sink.claim(timeout=1) as slot:
            fill(slot, sink.spec, sample(9, number))
            slot.commit()
    tally = Tally()
    tally.add(server.sample(timeout=5).batch)
    tally.check({9: 4})


def test_buffers_are_writable_bytes_of_each_leaf() -> None:
    _, sink = opened()
    with sink.claim() as slot:
        sizes = []
        for index in range(3):
            view = slot.buffer(index)
            assert (view.format, view.itemsize, view.readonly, view.contiguous) == ("B", 1, False, True)
            sizes.append(view.nbytes)
            del view
        assert sizes == [leaf.nbytes for leaf in sink.spec.leaves] == [12, 8, 0]
        for index in (3, -1):
            with pytest.raises(IndexError, match=f"leaf {index}: the spec has 3 leaves"):
                slot.buffer(index)


def test_a_socket_receives_into_a_slot() -> None:
    server, sink = opened(np.zeros(1000, np.uint8), batch_size=1)
    here, there = socket.socketpair()
    with here, there, sink.claim(timeout=1) as slot:
        there.sendall(bytes(range(250)) * 4)
        assert here.recv_into(slot.buffer(0), 1000, socket.MSG_WAITALL) == 1000
        slot.commit()
    assert server.sample(timeout=5).batch.tobytes() == bytes(range(250)) * 4


def test_an_uncommitted_slot_goes_to_the_next_writer() -> None:
    server, sink = opened(example(), batch_size=2)
    with sink.claim() as slot:
        fill(slot, sink.spec, sample(1, 77))
    with pytest.raises(RuntimeError, match="interrupted"), sink.claim() as slot:
        slot.buffer(0)[:4] = b"half"
        raise RuntimeError("interrupted")
    slot = sink.claim()
    slot.abort()
    del slot
    slot = sink.claim()
    del slot
    server.submit(sample(0, 0))
    server.submit(sample(0, 1))
    batch, info = server.sample(timeout=5)
    assert (batch["maker"].tolist(), sorted(batch["number"])) == ([0, 0], [0, 1])
    assert info.samples_aborted_total == 4
    assert info.samples_inserted_total == 2


def test_committing_under_a_live_view_is_an_error() -> None:
    server, sink = opened(batch_size=1)
    with sink.claim() as slot:
        view, array = slot.buffer(0), np.frombuffer(slot.buffer(1), np.float64)
        with pytest.raises(BufferError, match="2 views of this slot are still alive"):
            slot.commit()
        with pytest.raises(BufferError):
            slot.abort()
        del array
        with pytest.raises(BufferError, match="1 views"):
            slot.commit()
        view.release()
        slot.commit()
    assert server.sample(timeout=5).info.samples_inserted_total == 1


def test_a_slot_ends_once() -> None:
    _, sink = opened()
    with sink.claim() as slot:
        slot.commit()
        for call in (slot.commit, slot.abort, lambda: slot.buffer(0)):
            with pytest.raises(ValueError, match="committed or aborted already"):
                call()
    other = sink.claim()
    other.abort()
    for call in (other.commit, other.abort, lambda: other.buffer(0)):
        with pytest.raises(ValueError, match="committed or aborted already"):
            call()


def test_a_view_that_outlives_its_slot_reaches_nobody_elses_memory() -> None:
    server, sink = opened(np.zeros(8, np.uint8), batch_size=2, num_buffers=2)
    with sink.claim() as slot:
        view = slot.buffer(0)
    del slot
    assert server.stats()["store/samples_aborted_total"] == 0, "the slot is still the view's"
    for value in (1, 2, 3):
        server.submit(np.full(8, value, np.uint8), timeout=0)
    view[:] = b"\xff" * 8
    assert server.sample(timeout=5).batch.tolist() == [[2] * 8, [3] * 8], "overtakes the stalled one"
    del view
    assert server.stats()["store/samples_aborted_total"] == 1
    server.submit(np.full(8, 4, np.uint8), timeout=0)
    assert sorted(server.sample(timeout=0).batch[:, 0]) == [1, 4]


def test_a_stalled_writer_delays_its_own_batch_only() -> None:
    server, sink = opened(example(), batch_size=3, num_buffers=4)
    stalled = sink.claim()
    server.submit_batch(stacked(0, 0, 8), timeout=0)
    assert server.sample(timeout=5).batch["number"].tolist() == [2, 3, 4]
    assert server.sample(timeout=5).batch["number"].tolist() == [5, 6, 7]
    fill(stalled, sink.spec, sample(0, 99))
    stalled.commit()
    assert server.sample(timeout=5).batch["number"].tolist() == [99, 0, 1]


def test_waiting_for_a_slot_ends() -> None:
    server, sink = opened(example(), batch_size=1, num_buffers=2)
    server.submit_batch(stacked(0, 0, 2))
    for timeout in (0, 0.05):
        with pytest.raises(EchoTimeoutError, match=r"claim\(\).*sample\(\)"):
            sink.claim(timeout)
    server.close()
    with pytest.raises(ClosedError):
        sink.claim()


def test_a_slot_outlives_close_and_server() -> None:
    server, sink = opened(np.zeros(2, np.int32), batch_size=1)
    kept, lost = sink.claim(), sink.claim()
    server.close()
    fill(kept, sink.spec, np.array([3, 4], np.int32))
    kept.commit()
    assert server.sample(timeout=5).batch.tolist() == [[3, 4]]
    del server
    with pytest.raises(ClosedError, match="gone"):
        sink.claim()
    lost.buffer(0)[:] = b"\x01" * 8
    lost.commit()


def test_claiming_in_a_forked_child_is_an_error(python) -> None:
    python(
        """
        import os
        import numpy as np
        from echo_core import ForkError, Server
        from echo_core.server.sink import ServerSink

        server = Server(np.zeros(2), batch_size=2)
        sink = ServerSink(server)
        slot = sink.claim()
        if (child := os.fork()) == 0:
            status = 1
            try:
                sink.claim(timeout=1)
            except ForkError:
                status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        slot.commit()
        server.submit(np.ones(2))
        assert server.sample(timeout=5).batch[1].tolist() == [1, 1]
        """
    )
    assert issubclass(ForkError, RuntimeError)
