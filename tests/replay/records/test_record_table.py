"""Tables of samples of varying length: what comes out is what went in, whole or not at all, and in the room that was given."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from record_chunks import BEGINS, ENDS, PAYLOAD, Worker, record

from echo_core import ConfigError, EchoError, EchoTimeoutError, MinSize, Queue, Ragged, Server, SpecError, Steps, Table
from echo_core.base.memory.client_memory import ClientMemory
from echo_core.spec.ragged import RaggedSpec

pytestmark = pytest.mark.needs("echo-samplers")

EXAMPLE = {"tokens": Ragged(np.int32, most=4096), "logprobs": Ragged(np.float32), "reward": np.float32(0), "task": np.int64(0)}
SPEC = RaggedSpec.from_example(EXAMPLE)


def sample(task: int, n: int) -> dict:
    return {
        "tokens": np.arange(n, dtype=np.int32) * 7 + task,
        "logprobs": np.arange(n, dtype=np.float32) - task,
        "reward": np.float32(task / 2),
        "task": np.int64(task),
    }


def arrays(task: int, n: int) -> list[np.ndarray]:
    return [np.asarray(value) for value in SPEC.treedef.flatten_up_to(sample(task, n))]


def queue(capacity: int = 1000, max_bytes: int = 8 << 20, batch_size: int = 4, **options):
    options = {"sampler": "fifo", "rate_limiter": Queue(capacity), **options}
    return Table("rollouts", EXAMPLE, capacity=capacity, max_bytes=max_bytes, **options).open(batch_size)


def same(got: dict, wanted: dict) -> None:
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name], value)


def check(batch) -> list[int]:
    """Every item of a batch is as it was made; returns the tasks."""
    tasks = []
    for i in range(len(batch.packed)):
        item = batch.row(i)
        same(item, sample(int(item["task"]), len(item["tokens"])))
        tasks.append(int(item["task"]))
    return tasks


LENGTHS = [0, 1, 4096, 17, 63, 64, 65, 640, 2048]


def test_items_come_back_as_they_were_sent() -> None:
    table = queue()
    keys = [table.submit(sample(i, n)) for i, n in enumerate(LENGTHS * 4)]
    assert len(set(keys)) == 36
    for at in range(0, 36, 4):
        batch = table.sample(timeout=0)
        assert check(batch) == list(range(at, at + 4))
        assert batch.offsets["t"].dtype == np.int32
        assert batch.offsets["t"].tolist() == [0, *np.cumsum((LENGTHS * 4)[at : at + 4])]
        assert batch.keys.tolist() == keys[at : at + 4]
    stats = table.stats()
    assert stats["bytes_used"] == 0 and stats["units_t"] == 0
    assert stats["units_inserted_t"] == stats["units_sampled_t"] == sum(LENGTHS) * 4


def test_chunks_of_several_workers_alternate() -> None:
    table = queue()
    workers = [Worker(table, client) for client in range(1, 9)]
    queues = [worker.cut(record(SPEC, arrays(i, 4096 if i % 2 else 300 * i))) for i, worker in enumerate(workers)]
    while any(queues):
        for worker, chunks in zip(workers, queues):
            if chunks:
                worker.put(chunks.pop(0))
    assert sorted(check(table.sample(8, timeout=0))) == list(range(8))
    assert table.stats()["records_incomplete"] == 0


def test_a_cut_off_record_never_swallows_the_next_one() -> None:
    table = queue()
    worker = Worker(table, 5)
    worker.put(*worker.cut(record(SPEC, arrays(1, 3000)))[:7])
    assert table.stats()["records_half_sent"] == 1
    worker.put(*worker.cut(record(SPEC, arrays(2, 3000))))
    assert check(table.sample(1, timeout=0)) == [2]
    stats = table.stats()
    assert stats["records_incomplete"] == 1 and stats["records_half_sent"] == 0


def test_a_lost_chunk_joins_no_two_halves() -> None:
    table = queue()
    worker = Worker(table, 5)
    first, second = worker.cut(record(SPEC, arrays(1, 1000))), worker.cut(record(SPEC, arrays(2, 1000)))
    worker.put(*first[:3], *second[3:])  # as many bytes as one record has
    assert len(table) == 0
    assert table.stats()["records_incomplete"] == 1
    worker.put(*worker.cut(record(SPEC, arrays(3, 10))))
    assert check(table.sample(1, timeout=0)) == [3]


@pytest.mark.parametrize(
    "lengths",
    [[5000, 0, 0, 0], [1 << 31, 0, 0, 0], [(1 << 32) - 1] * 4, [100, 1, 0, 0], [99, 0, 0, 0], [101, 0, 0, 0], [4096, 0, 0, 0]],
)
def test_lengths_that_lie_are_refused_and_counted(lengths: list[int]) -> None:
    table = queue()
    worker = Worker(table, 5)
    worker.put(*worker.cut(record(SPEC, arrays(1, 100), lengths)))
    assert len(table) == 0
    worker.put(*worker.cut(record(SPEC, arrays(2, 100))))
    assert check(table.sample(1, timeout=0)) == [2]
    stats = table.stats()
    assert stats["records_refused"] == 1 and stats["records_incomplete"] == 0 and stats["bytes_used"] == 0


def test_heads_that_lie_are_refused() -> None:
    table = queue()
    worker = Worker(table, 5)
    for used, flags in ((PAYLOAD + 1, BEGINS), ((1 << 32) - 1, BEGINS | ENDS), (10, BEGINS | ENDS), (0, 0), (0, ENDS), (100, 1 << 31)):
        worker.put(worker.head(used, flags) + b"x" * 100)
    worker.put(*worker.cut(record(SPEC, arrays(2, 100))))
    assert check(table.sample(1, timeout=0)) == [2]


def test_a_bad_priority_is_refused_as_it_is_of_samples_of_one_size() -> None:
    table = queue(sampler="uniform", rate_limiter=MinSize(1))
    worker = Worker(table, 5)
    for priority in (-1.0, float("inf")):
        worker.put(*worker.cut(record(SPEC, arrays(1, 100), priority=priority)))
    stats = table.stats()
    assert stats["refused"] == 2 and stats["size"] == 0 and stats["bytes_used"] == 0 and stats["units_t"] == 0


def test_a_worker_that_is_given_up_leaves_nothing() -> None:
    table = queue()
    gone, stays = "11" * 16, "22" * 16
    workers = [Worker(table, int(each[:12], 16)) for each in (gone, stays)]
    for worker in workers:
        worker.put(*worker.cut(record(SPEC, arrays(1, 3000)))[:7])
    table.peer_gone(1, gone, [stays])
    assert table.stats()["records_half_sent"] == 2  # it may only have lost its connection
    table.forget_lost_workers(0)
    stats = table.stats()
    assert stats["records_half_sent"] == 1 and stats["records_incomplete"] == 1


def test_a_worker_that_reconnects_goes_on_in_the_middle() -> None:
    table = queue()
    client = "11" * 16
    worker = Worker(table, int(client[:12], 16))
    chunks = worker.cut(record(SPEC, arrays(1, 3000)))
    worker.put(*chunks[:7])
    table.peer_gone(1, client, [])
    worker.put(*chunks[7:])
    assert check(table.sample(1, timeout=0)) == [1]


def test_a_queue_evicts_nothing_and_its_writers_wait_for_bytes() -> None:
    table = queue(max_bytes=200_000, batch_size=1)
    inserted = 0
    with pytest.raises(EchoTimeoutError, match="max_bytes"):
        for inserted in range(1000):
            table.submit(sample(inserted, 4096), timeout=0)
    assert inserted >= 5
    seen = []
    done = threading.Event()

    def write() -> None:
        for task in range(inserted, 60):
            table.submit(sample(task, 4096), timeout=20)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while len(seen) < 60:
        seen += check(table.sample(1, timeout=20))
    thread.join()
    assert seen == list(range(60)) and done.is_set()
    assert table.stats()["evicted"] == 0


def test_half_sent_records_of_many_workers_block_nobody() -> None:
    # 16 writers of the longest samples, and a table of 5 of them.
    longest = SPEC.max_record_bytes
    table = queue(max_bytes=5 * longest, batch_size=5)
    workers = [Worker(table, client) for client in range(1, 17)]
    chunks = [worker.cut(record(SPEC, arrays(i, 4096))) for i, worker in enumerate(workers)]
    seen: list[int] = []
    for i in range(len(chunks[0])):
        for worker, mine in zip(workers, chunks):
            while True:
                try:
                    worker.put(mine[i], timeout=0)
                    break
                except EchoTimeoutError:
                    seen += check(table.sample(1, timeout=0))
    while len(seen) < 16:
        seen += check(table.sample(1, timeout=0))
    assert sorted(seen) == list(range(16)) and table.stats()["evicted"] == 0


def test_a_draw_of_more_than_fits_ends_in_an_error_with_both_figures() -> None:
    table = queue(max_bytes=5 * SPEC.max_record_bytes, batch_size=1)
    workers = [Worker(table, client) for client in range(1, 17)]
    ended = 0
    for i, worker in enumerate(workers):
        try:
            worker.put(*worker.cut(record(SPEC, arrays(i, 4096))), timeout=0)
            ended += 1
        except EchoTimeoutError:
            break
    with pytest.raises(EchoError, match=r"a batch needs 16 items, and there are \d+, while a writer waits for [\d,]+ bytes, of which [\d,]+ of"):
        table.sample(16, timeout=20)
    assert len(check(table.sample(4, timeout=0))) == 4


def test_other_tables_evict_until_the_pages_suffice() -> None:
    table = queue(sampler="uniform", rate_limiter=MinSize(1), max_bytes=500_000, capacity=1000)
    for i in range(500):
        table.submit(sample(i, LENGTHS[i % 9]), timeout=0)
        assert table.stats()["bytes_used"] <= 500_000
    assert table.stats()["evicted"] > 0
    for _ in range(20):
        assert all(task > 400 for task in check(table.sample(4, timeout=0)))
    table.delete(table.keys())
    assert table.stats()["bytes_used"] == 0


def test_leases_hold_their_pages_until_the_acknowledgement() -> None:
    table = queue(lease_timeout=60.0)
    for i, n in enumerate(LENGTHS):
        table.submit(sample(i, n))
    batch = table.sample(9, timeout=0)
    used = table.stats()["bytes_used"]
    assert used > 0 and table.stats()["on_loan"] == 9
    table.take_back(0)
    again = table.sample(9, timeout=0)
    assert check(again) == check(batch) == list(range(9))
    assert table.stats()["bytes_used"] == used
    assert table.ack(again.keys) == 9
    assert table.stats()["bytes_used"] == 0


def test_versions_and_priorities_travel_in_the_header() -> None:
    table = queue(sampler={"type": "prioritized"}, rate_limiter=MinSize(1), policy_versions=True, max_policy_lag=2)
    worker = Worker(table, 3)
    for version, priority in ((1, 1.0), (2, 5.0), (3, None)):
        worker.put(*worker.cut(record(SPEC, arrays(version, 50), priority=priority, version=version)))
    table.published(3)
    versions, counts = table.policy_versions()
    assert dict(zip(versions.tolist(), counts.tolist())) == {1: 1, 2: 1, 3: 1}
    _, priorities = table.top(3)
    assert np.isclose(priorities, 5.0).any()
    used = table.stats()["bytes_used"]
    table.published(4)  # the first lags too far behind
    assert len(table) == 2 and table.stats()["bytes_used"] < used
    batch = table.sample(2, timeout=0)
    check(batch)
    assert table.update_priorities(batch.keys, np.full(2, 9.0)) == 0


# ---- draws by units ------------------------------------------------------------------------------------------------------------


def test_a_budget_is_filled_with_whole_items_and_the_next_draw_goes_on() -> None:
    table = queue(batch_size=1)
    lengths = [1000, 2000, 1500, 3000, 4096, 5, 0, 4000, 96, 1, 4096, 4096]
    for i, n in enumerate(lengths):
        table.submit(sample(i, n))
    seen, sizes = [], []
    for _ in range(4):
        batch = table.sample(units={"t": 5000}, timeout=0)
        seen += check(batch)
        sizes.append(int(batch.offsets["t"][-1]))
    assert seen == list(range(len(seen)))
    assert sizes == [4500, 3000, 4101, 4097]
    stats = table.stats()
    assert stats["samples"] == len(seen) and stats["size"] == len(lengths) - len(seen)


def test_a_draw_by_units_waits_until_the_budget_can_be_filled() -> None:
    table = queue(batch_size=1)
    for i in range(3):
        table.submit(sample(i, 1000))
    with pytest.raises(EchoTimeoutError):
        table.sample(units={"t": 5000}, timeout=0)
    threading.Timer(0.2, lambda: [table.submit(sample(i, 1000)) for i in range(3, 6)]).start()
    assert check(table.sample(units={"t": 5000}, timeout=20)) == [0, 1, 2, 3, 4]


def test_a_full_queue_gives_what_it_has() -> None:
    table = queue(capacity=4, batch_size=1)
    for i in range(4):
        table.submit(sample(i, 100))
    assert check(table.sample(units={"t": 5000}, timeout=0)) == [0, 1, 2, 3]


def test_samplers_that_keep_items_give_each_once_in_a_batch() -> None:
    table = queue(sampler="uniform", rate_limiter=MinSize(1), seed=3)
    for i in range(60):
        table.submit(sample(i, 100 + i))
    for _ in range(10):
        batch = table.sample(units={"t": 4096}, timeout=0)
        tasks = check(batch)
        if not table.sampler.replacement:
            assert len(set(tasks)) == len(tasks)
        assert 4096 - 160 <= batch.offsets["t"][-1] <= 4096


@pytest.mark.parametrize(
    ("units", "text"),
    [({"x": 5000}, "units must name one axis"), ({"t": 4095}, "whole number from 4096"), ({"t": 1 << 31}, "whole number from 4096"), (5000, "units must")],
)
def test_invalid_budgets_are_refused(units, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        queue().sample(units=units)


# ---- what is refused by name -----------------------------------------------------------------------------------------------------


def test_offsets_beyond_int32_are_refused_by_name() -> None:
    table = queue()
    with pytest.raises(ValueError, match="axis 't', which offsets of 32 bits cannot number"):
        table.sample(1 << 20, timeout=0)


def test_a_batch_of_the_longest_samples_has_to_fit() -> None:
    with pytest.raises(ConfigError, match="a batch of 64 of the longest samples needs .* more than max_bytes"):
        queue(max_bytes=1 << 20, batch_size=64)


@pytest.mark.parametrize("options", [{"items": object()}, {"stack": object()}, {"initial": 5}])
def test_arguments_of_tables_of_one_size_are_refused(options) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is for samples of one size"):
        Table("x", EXAMPLE, capacity=10, sampler="fifo", **options)


def test_ragged_steps_are_refused() -> None:
    with pytest.raises(SpecError, match="'logprobs' of the example is Ragged"):
        Steps(EXAMPLE)


def test_bad_samples_name_the_leaf() -> None:
    table = queue()
    with pytest.raises(SpecError, match="logprobs"):
        table.submit({**sample(1, 10), "logprobs": np.zeros(9, np.float32)})
    with pytest.raises(SpecError, match="4096"):
        table.submit(sample(1, 4097))
    assert len(table) == 0 and table.stats()["bytes_used"] == 0


def test_units_are_refused_where_samples_have_one_size() -> None:
    server = Server({"x": np.float32(0)}, batch_size=2)
    with pytest.raises(ValueError, match="units"):
        server.sample(units={"t": 100})


@pytest.mark.needs("echo-tcp")
def test_workers_of_echo1_are_refused() -> None:
    server = Server(EXAMPLE, batch_size=2, transport={"type": "tcp", "port": 0, "protocol": "echo1"})
    with pytest.raises(ConfigError, match="'echo1' send samples of one size"):
        server.start()


def test_an_iterator_draws_by_units_and_its_copies_hold_nothing() -> None:
    with Server(EXAMPLE, batch_size=1) as server:
        for i in range(12):
            server.submit(sample(i, 1000))
        kept = []
        for batch in server.dataset_iter(copy=True, timeout=5, units={"t": 5000}):
            kept.append(batch)
            if len(kept) == 2:
                break
        assert check(kept[0]) + check(kept[1]) == list(range(10))
        assert kept[0].keys.shape == kept[0].weights.shape == (5,)


def test_a_server_makes_its_queue_by_itself() -> None:
    with Server(EXAMPLE, batch_size=3) as server:
        for i in range(6):
            server.submit(sample(i, 100 * i))
        batch, info = server.sample(timeout=0)
        assert info.store_size == 3 and batch["tokens"].shape == (300,)
        assert check(server.sample(timeout=0)) == [3, 4, 5]


def test_a_batch_keeps_its_memory() -> None:
    table = queue()
    held = []
    for turn in range(8):
        for i in range(4):
            table.submit(sample(4 * turn + i, 500))
        held.append(table.sample(timeout=0))
    arrays_ = [batch.batch["tokens"] for batch in held]
    del table
    for turn, batch in enumerate(held):
        assert check(batch) == list(range(4 * turn, 4 * turn + 4))
    del held, batch
    for turn, tokens in enumerate(arrays_):
        assert tokens[0] == 4 * turn


def test_writers_and_learners_at_the_same_time_see_whole_items() -> None:
    table = queue(sampler="uniform", rate_limiter=MinSize(8), max_bytes=400_000, capacity=200)
    stop = time.monotonic() + 2.0
    errors: list[BaseException] = []

    def write(client: int) -> None:
        rng = np.random.default_rng(client)
        worker = Worker(table, client)
        try:
            for task in range(10**9):
                if time.monotonic() > stop:
                    return
                n = int(rng.choice(LENGTHS))
                if client % 2:
                    table.submit(sample(task, n))
                else:
                    worker.put(*worker.cut(record(SPEC, arrays(task, n))))
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        try:
            while time.monotonic() < stop:
                check(table.sample(8, timeout=5))
                check(table.sample(units={"t": 8000}, timeout=5))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(client,)) for client in range(1, 5)] + [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_chunks_of_clients_that_never_were_here_are_forgotten() -> None:
    """What a worker writes into its chunks decides whose they are, so it could make the server keep any number of half-sent records."""
    table = queue()
    table.use_memory(ClientMemory(5 * SPEC.max_record_bytes))
    chunks = [Worker(table, client).cut(record(SPEC, arrays(1, 3000)))[0] for client in range(1, 31)]
    worker = Worker(table, 1)
    worker.put(*chunks)
    stats = table.stats()
    assert stats["records_half_sent_bytes"] <= 10 * SPEC.max_record_bytes and stats["records_refused"] == 30 - stats["records_half_sent"] > 0
    table.peer_gone(1, "22" * 16, [])
    table.forget_lost_workers(0)
    assert table.stats()["records_half_sent"] == 0


def test_a_batch_with_a_bad_sample_inserts_nothing() -> None:
    table = queue()
    with pytest.raises(SpecError, match="sample 2 of the batch: leaf 'logprobs' has 5000 rows"):
        table.submit_batch([sample(0, 5), sample(1, 5), sample(2, 5000), sample(3, 5)])
    assert len(table) == 0


def test_a_writer_that_waits_for_bytes_says_so() -> None:
    table = queue(max_bytes=200_000, batch_size=1)
    with pytest.raises(EchoTimeoutError, match=r"bytes \(max_bytes\) are free, and a sample may need [\d,]+; the learner samples slower"):
        for task in range(1000):
            table.submit(sample(task, 4096), timeout=0.1)


def test_another_batch_has_the_same_lengths() -> None:
    table = queue()
    table.submit_batch([sample(0, 5), sample(1, 6)])
    drawn = table.sample(2, timeout=0)
    copy = {name: value.copy() for name, value in drawn.batch.items()}
    assert check(drawn.with_batch(copy)) == [0, 1]
    with pytest.raises(SpecError, match="leaf 'tokens' has 10 rows, and this batch has 11"):
        drawn.with_batch({**copy, "tokens": copy["tokens"][:10]})
