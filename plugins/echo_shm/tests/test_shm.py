"""The features that shared memory has beyond the contract of every transport."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.errors import EchoError, EchoTimeoutError, ProtocolError
from echo_core.wire.weights import PackedWeights, aligned_bytes, pack, unpack
from echo_shm._board import PAGE, PLACES, Places
from echo_shm.board import Board, Reader
from echo_shm.transport import ShmClient, ShmTransport
from echo_testing import workers
from echo_testing.processes import forked, until
from echo_testing.samples import Tally, example, sample, stacked

sys.path.insert(0, str(Path(__file__).parent))  # for processes that are spawned
import torn

SECONDS = float(os.environ.get("ECHO_SOAK_SECONDS", "3"))


def fill(slot: Any, number: int) -> None:
    for name, value in sample(7, number).items():
        slot.sample[name][...] = value


def drain(server: Server, count: int) -> Tally:
    tally = Tally()
    while tally.count < count:
        tally.add(server.sample(timeout=20).batch)
    return tally


# ---- reserve ---------------------------------------------------------------------------------------------------


def test_a_reserved_slot_is_filled_in_place() -> None:
    with Server(example(), 4, ShmTransport()) as server, Client(server.address, example()) as client:
        for number in range(6):
            with client.reserve() as slot:
                fill(slot, number)
                if number not in (2, 4):
                    slot.commit()
            until(lambda n=number: server.stats()["store/samples_aborted_total"] == (n >= 2) + (n >= 4), "it was given back")
        numbers = server.sample(timeout=10).batch["number"].tolist()
        assert sorted(numbers) == [0, 1, 3, 5]
        assert client.stats()["samples"] == 4
        assert server.stats()["store/samples_aborted_total"] == 2


def test_a_reserved_slot_is_not_committed_while_its_arrays_live() -> None:
    with Server(example(), 1, ShmTransport()) as server, Client(server.address, example()) as client:
        slot = client.reserve()
        fill(slot, 0)
        array = slot.sample["filler"]
        view = array[3:]
        del array
        with pytest.raises(BufferError, match="alive"):
            slot.commit()
        del view
        slot.commit()
        for call in (slot.commit, slot.abort, lambda: slot.sample):
            with pytest.raises(ValueError, match="already"):
                call()
        assert server.sample(timeout=10).batch["number"].tolist() == [0]


def test_reservations_are_bounded_and_wait_for_space() -> None:
    with Server(example(), 2, ShmTransport(), num_buffers=2) as server, Client(server.address, example(), reservations=2) as client:
        held = [client.reserve(), client.reserve()]
        with pytest.raises(EchoError, match="reservations"):
            client.reserve()
        held.pop().abort()
        until(lambda: server.stats()["store/samples_aborted_total"] == 1, "it was given back")
        held.append(client.reserve())
        for number, slot in enumerate(held):
            fill(slot, number)
            slot.commit()
        client.send_batch(stacked(1, 0, 2))
        with pytest.raises(EchoTimeoutError, match="to have room for a sample"):
            client.reserve(timeout=0.1)
        dropped = threading.Timer(0.2, lambda: drain(server, 2))
        dropped.start()
        del held, slot
        client.reserve()  # dropped at once: given back
        dropped.join()
        client.send_batch(stacked(1, 2, 2))
        drain(server, 4)


@pytest.mark.parametrize(("listening", "connecting"), [({"mode": "private"}, {}), ({}, {"mode": "private"})])
def test_who_does_not_share_the_store_copies_a_reserved_sample(listening: dict[str, Any], connecting: dict[str, Any]) -> None:
    with Server(example(), 2, ShmTransport(**listening)) as server, Client(server.address, example(), **connecting) as client:
        for number in range(2):
            with client.reserve() as slot:
                fill(slot, number)
                slot.commit()
        drain(server, 2).check({7: 2})
        assert server.stats()["store/samples_aborted_total"] == 0


# ---- samples ---------------------------------------------------------------------------------------------------


def test_samples_that_had_to_wait_keep_their_order() -> None:
    with Server(example(), 8, ShmTransport(), num_buffers=2) as server, Client(server.address, example(), patience=0.0) as client:

        def work() -> None:
            for number in range(0, 4000, 8):
                client.send(sample(1, number))
                client.send_batch(stacked(1, number + 1, 7))

        worker = threading.Thread(target=work)
        worker.start()
        tally = Tally()
        while tally.count < 4000:
            tally.add(server.sample(timeout=20).batch)
            if tally.count % 400 == 0:
                time.sleep(0.01)
        worker.join()
        client.wait()
        tally.check({1: 4000})
        stats = client.stats()
        assert stats["acknowledged"] == stats["samples"] == 4000 > stats["direct_samples"] > 0


def test_more_workers_than_records_use_the_socket() -> None:
    with Server(example(), 4, ShmTransport(), num_buffers=8) as server:
        clients = [Client(server.address, example(), reservations=64) for _ in range(16)]
        modes = [client.stats()["mode"] for client in clients]
        assert modes == ["direct"] * 15 + ["private"]
        for maker, client in enumerate(clients[-2:]):
            client.send_batch(stacked(maker, 0, 4))
            drain(server, 4).check({maker: 4})
        for client in clients:
            client.close()
        until(lambda: server._listeners[0].stats()["direct_workers"] == 0, "their records are free")
        with Client(server.address, example()) as client:
            assert client.stats()["mode"] == "direct"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this test is about a fork with threads
@pytest.mark.parametrize("way", ["spawn", "forkserver", "fork"])
def test_workers_however_they_are_started(way: Any) -> None:
    context = multiprocessing.get_context(way)
    with Server(example(), 8, ShmTransport()) as server:
        here = workers.Environment()  # the server that forks may have been started by a test before
        jobs = [(here, workers.flood, str(server.address), maker, 40, 8 * maker, {}) for maker in range(2)]
        processes = [context.Process(target=workers.run, args=job) for job in jobs]
        try:
            for process in processes:
                process.start()
            drain(server, 80).check({0: 40, 1: 40})
            for process in processes:
                process.join(60)
                assert process.exitcode == 0
        finally:
            for process in processes:
                process.kill()
                process.join()
                process.close()


def test_a_forked_child_leaves_the_store_alone() -> None:
    with Server(example(), 2, ShmTransport(), num_buffers=2) as server, Client(server.address, example()) as client:
        client.send_batch(stacked(1, 0, 2))
        held = [server.sample(timeout=10).batch]
        forked(held.clear)
        client.send_batch(stacked(1, 2, 2))
        with pytest.raises(EchoTimeoutError):
            client.send(sample(1, 4), timeout=0)
            client.wait(timeout=0.2)
        assert held[0]["number"].tolist() == [0, 1]
        del held
        drain(server, 2)
        client.send(sample(1, 5))
        drain(server, 2)


# ---- addresses -------------------------------------------------------------------------------------------------


def test_a_name_leaves_no_file_and_a_long_one_is_refused() -> None:
    with Server(example(), 2, ShmTransport("echo-test-name")) as server, ShmClient("echo-test-name", example()) as client:
        assert str(server.address) == "shm://echo-test-name"
        client.send_batch(stacked(1, 0, 2))
        drain(server, 2).check({1: 2})
    with pytest.raises(ValueError, match="107 bytes"):
        Server(example(), 2, ShmTransport("x" * 120)).start()
    with pytest.raises(OSError, match="make the folder first"):
        Server(example(), 2, ShmTransport("/no/such/folder/a.sock")).start()


@pytest.mark.parametrize("mode", ["direct", "private"])
def test_a_worker_that_had_to_wait_puts_its_samples_itself_again(mode: str) -> None:
    """After the store was full for a moment, a worker that sends without a break must return from the window to the direct path."""
    over = threading.Event()
    with Server(example(), 64, ShmTransport(mode=mode), num_buffers=4) as server, Client(server.address, example()) as client:

        def pour() -> None:
            for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                client.send(sample(0, number))

        worker = threading.Thread(target=pour)
        worker.start()
        until(lambda: client.stats()["unacknowledged"] > 1000, "the store is full, and samples wait in the window")
        tally, before = Tally(), client.stats()["direct_samples"]
        end = time.monotonic() + 60
        while client.stats()["direct_samples"] < before + 20_000 and time.monotonic() < end:
            tally.add(server.sample(timeout=60).batch)
        over.set()
        while worker.is_alive() or client.stats()["unacknowledged"]:
            with contextlib.suppress(EchoTimeoutError):
                tally.add(server.sample(timeout=0.1).batch)
        assert client.stats()["direct_samples"] >= before + 20_000
        assert tally.numbers[0] == list(range(tally.count)), "out of order"


# ---- weights ---------------------------------------------------------------------------------------------------


def test_readers_that_are_slower_than_the_writer_see_no_torn_version() -> None:
    board, over = Board(), threading.Event()
    board.put(pack({"w": np.full(200_000, 0)}, 1))
    reader = Reader(board.fd)
    seen: list[int] = []
    late = [0]

    def follow() -> None:
        while not over.is_set():
            notice = board.newest
            assert notice is not None
            whole = reader.copy(notice.version)
            if whole is None:  # overwritten while it was copied
                late[0] += 1
                continue
            weights = unpack(*whole[1:3])  # the digest is checked here, over all bytes
            assert weights.version == whole[0] >= notice.version and weights.digest == whole[3]
            assert (weights.params["w"] == weights.version - 1).all()
            seen.append(weights.version)

    readers = [threading.Thread(target=follow) for _ in range(2)]
    for thread in readers:
        thread.start()
    version, end = 1, time.monotonic() + 2
    while time.monotonic() < end:
        version += 1
        board.put(pack({"w": np.full(200_000, version - 1)}, version))
    over.set()
    for thread in readers:
        thread.join()
    assert len(seen) > 10 and max(seen) > 2
    board.close()


def test_weights_are_packed_where_workers_read_them_and_no_version_that_is_held_changes() -> None:
    board, count = Board(), 20_000

    def publish(version: int) -> PackedWeights:
        def memory(size: int) -> np.ndarray:
            found = board.memory(size)
            return aligned_bytes(size) if found is None else found

        packed = pack({"w": np.full(count, version)}, version, memory=memory)
        board.put(packed)
        newest = board.newest
        assert newest is not None
        whole = Reader(board.fd).copy(newest.version)
        assert whole is not None and (unpack(*whole[1:3]).params["w"] == version).all()
        return packed

    held = [publish(version) for version in range(1, 9)]  # more versions than places: a slow sender still holds its version
    for packed in held:
        assert (unpack(packed.meta, packed.payload).params["w"] == packed.version).all()
    del held, packed
    publish(9)
    generation = board.newest.generation
    for version in range(10, 20):
        packed = publish(version)
        assert np.shares_memory(packed.payload, board._memory), "it was copied"
    assert board.newest.generation == generation
    assert len(pack({}, 20, memory=board.memory).payload) == 0
    board.close()
    assert (unpack(packed.meta, packed.payload).params["w"] == 19).all(), "the memory outlives the board for who has it"


def test_a_place_is_not_read_from_when_memory_in_it_was_given_until_it_was_put() -> None:
    board = Board()
    for version in (1, 2, 3):
        board.put(pack({"w": np.full(100, version)}, version))
    reader = Places(mmap.mmap(board.fd, 0, mmap.MAP_SHARED, mmap.PROT_READ))
    found = reader.look()
    assert found is not None and found.version == 3
    target = aligned_bytes(found.payload)
    board.put(pack({"w": np.full(100, 4)}, 4))
    board.put(pack({"w": np.full(100, 5)}, 5))
    assert found.copy(target) is not None, "two were published since, its place is as it was"
    memory = board.memory(found.payload)
    assert found.copy(target) is None, "from here on the learner may write to it"
    # A learner that dies meanwhile, or whose weights cannot be packed, leaves this state.
    whole = Reader(board.fd).copy(5)
    assert whole is not None and whole[0] == 5 and (unpack(*whole[1:3]).params["w"] == 5).all()
    assert Reader(board.fd).copy(6) is None
    del memory
    board.put(pack({"w": np.full(100, 6)}, 6, memory=board.memory))  # type: ignore[arg-type]
    whole = Reader(board.fd).copy(6)
    assert whole is not None and (unpack(*whole[1:3]).params["w"] == 6).all()
    assert found.copy(target) is None, "it is another version's, though it is whole"
    board.close()


def test_what_a_reader_finds_on_the_page_is_bounded_by_what_it_has_mapped() -> None:
    memory = np.zeros((1 + PLACES) * PAGE + 100, np.uint8)
    places = Places(memory, write=True)
    assert places.capacity == PAGE and places.start(PLACES - 1) + PAGE <= len(memory)
    places.begin(1)
    places.finish(1, 7, 8, PAGE - 9, 0)
    found = places.look()
    assert found is not None and (found.version, found.digest, found.payload) == (7, 8, PAGE - 9)
    for wrong in (bytearray(PAGE), bytearray(PAGE - 10)):
        with pytest.raises(ValueError, match="do not fill"):
            found.copy(wrong)
    for sizes in ((PAGE + 1, 0), (1, 1), (0, PAGE + 1), ((1 << 64) - 1, 0), (0, (1 << 64) - 1)):
        with pytest.raises(ValueError, match="do not fit"):
            places.finish(1, 8, 8, *sizes)
    words = memory[:PAGE].view(np.uint64)
    (at,) = np.flatnonzero(words == PAGE - 9)  # the offset of the payload's size
    for size in (PAGE + 1, (1 << 64) - 1, (1 << 64) - PAGE):
        words[at] = size
        with pytest.raises(ProtocolError, match="reach past"):
            places.look()
    words[at] = 0
    assert places.look() is not None
    words[0] = PLACES  # the word that names the newest place
    with pytest.raises(ProtocolError, match="reach past"):
        places.look()
    memory.flags.writeable = False
    with pytest.raises(ValueError, match="written"):
        Places(memory).begin(0)
    with pytest.raises(ValueError, match="no board"):
        Places(bytes(PLACES * PAGE))


@pytest.mark.soak
@pytest.mark.timeout(int(120 + 2 * SECONDS))
@pytest.mark.parametrize("mode", ["direct", "private"])
def test_a_free_running_writer_and_four_readers(mode: str) -> None:
    published, seen, rows = torn.free_running(mode, 1_000_000, SECONDS / 2)
    assert published > 10 and min(seen) > 2 and rows == 8 * sum(seen)


def test_the_memory_of_weights_can_only_be_read_by_who_is_given_it() -> None:
    board = Board()
    board.put(pack({"w": np.zeros(10)}, 1))
    with pytest.raises(PermissionError):
        mmap.mmap(board.fd, 0)
    with pytest.raises(PermissionError):
        os.pwrite(board.fd, b"x", 0)
    board.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this test is about a fork with threads
@pytest.mark.parametrize("kind", ["name", "path"])
def test_a_forked_child_does_not_hold_the_address(kind: str, tmp_path: Path) -> None:
    """Data loaders that a learner forked may outlive it, and hold copies of its open descriptors."""
    address = f"shm://fork-{os.getpid()}" if kind == "name" else f"shm://{tmp_path}/learner.sock"
    first = Server(example(), 2, address).start()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(write)
        os.read(read, 1)
        first.close()  # no sample of the next learner
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        first.close()
        with Server(example(), 2, address) as second:
            os.write(write, b"1")
            with Client(address, example(), timeout=20) as client:
                client.send_batch(stacked(0, 0, 2))
                assert second.sample(timeout=20).batch["number"].tolist() == [0, 1]
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_large_weights_use_one_place_and_a_second_only_while_the_older_version_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_shm.board.LARGE", 1 << 20)
    reading = False
    board, size = Board(lambda: reading), 2 << 20

    def publish(version: int) -> PackedWeights:
        board.newest = None  # as the listener withdraws the version before
        packed = pack({"w": np.full(size // 4, version, np.float32)}, version, memory=board.memory)  # type: ignore[arg-type]
        board.put(packed)
        whole = Reader(board.fd).copy(version)
        assert whole is not None and (unpack(*whole[1:3]).params["w"] == version).all()
        return packed

    def copies() -> int:
        return os.fstat(board.fd).st_blocks * 512 // size

    for version in (1, 2, 3):
        publish(version)
        assert copies() == 1
    reading = True
    for version in (4, 5, 6):
        publish(version)
        assert copies() == 2
    reading = False
    held = publish(7)
    assert copies() == 1, "the second place went back"
    publish(8)
    assert copies() == 2 and (unpack(held.meta, held.payload).params["w"] == 7).all(), "a sender still had it"
    del held
    publish(9)
    assert copies() == 1
    board.close()
