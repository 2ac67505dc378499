"""Replay pipelines: a batch is the draw that was requested, whole, and no failure of either side makes the other wait for ever."""

from __future__ import annotations

import csv
import queue
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import packers
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from echo_core.base.errors import ClosedError, ConfigError, EchoError, SpecError  # noqa: E402
from echo_ipc import CollectorDiedError, ReplayBuffer  # noqa: E402
from echo_ipc.async_runner import _SPAWN_CTX  # noqa: E402
from echo_ipc.replay_pipelines import CPUPinnedDoubleBufferReplayPipeline, ReplayPipeline, SharedSlots  # noqa: E402
from echo_ipc.replay_pipelines.collector import _collector_pack_shared_batch, _service_collector_pack_requests  # noqa: E402
from echo_ipc.replay_pipelines.transfer import build_replay_transfer_backend  # noqa: E402
from echo_ipc.replay_pipelines.transfer.cuda import CudaReplayTransferBackend  # noqa: E402
from echo_ipc.replay_pipelines.transfer.xpu import XpuReplayTransferBackend  # noqa: E402

COUNT = 8


def new_replay(rows: int, capacity: int = 64) -> ReplayBuffer:
    replay = ReplayBuffer(capacity, packers.OBS, packers.ACTION, "cpu")
    for first in range(0, rows, 8):
        replay.add(**packers.batch(first, min(8, rows - first)))
    return replay


def drawn(seed: int, size: int, count: int = COUNT) -> Any:
    return torch.randint(0, size, (count,), generator=torch.Generator().manual_seed(seed))


def request_of(replay: ReplayBuffer, **changes: Any) -> dict[str, Any]:
    found = {"tick_id": 7, "snapshot_ptr": int(replay.ptr[0]), "snapshot_size": int(replay.size[0]), "sample_seed": 5, "sample_count": COUNT}
    return found | {"shared_slot": 1, "learner_hot_gpu_slot": 0, "target_gpu_slot": 1} | changes


class Setup:
    """A pipeline whose collector is this test."""

    def __init__(self, replay: ReplayBuffer, context: Any = queue, **options: Any) -> None:
        self.replay = replay
        self.slots = SharedSlots(COUNT, replay._storage.shape[1])
        self.requests, self.packed = context.Queue(), context.Queue()
        self.pipeline = CPUPinnedDoubleBufferReplayPipeline(
            replay,
            device="cpu",
            sample_count=COUNT,
            base_seed=100,
            collector_pack_request_queue=self.requests,
            collector_pack_ready_queue=self.packed,
            collector_pack_shared_slots=self.slots,
            **options,
        )

    def serve(self) -> bool:
        return _service_collector_pack_requests(self.replay, self.requests, self.packed, self.slots)[0]

    def close(self) -> None:
        self.pipeline.close()
        self.pipeline.close()
        self.slots.cleanup()
        self.replay.cleanup()


@pytest.mark.parametrize("rows", [20, 64, 100])
def test_the_draw_is_that_of_the_seed(rows: int) -> None:
    replay = new_replay(rows)
    slots = SharedSlots(COUNT, replay._storage.shape[1])
    ready = _collector_pack_shared_batch(replay, request_of(replay), slots)
    assert torch.equal(slots[1], replay._storage[drawn(5, min(rows, 64))]) and ready["redrawn"] == 0 and ready["tick_id"] == 7
    with pytest.raises(RuntimeError, match="target_gpu_slot must differ"):
        _collector_pack_shared_batch(replay, request_of(replay, learner_hot_gpu_slot=1), slots)
    with pytest.raises(SpecError, match="a slot must be a contiguous"):
        _collector_pack_shared_batch(replay, request_of(replay, sample_count=3), slots)
    with pytest.raises(IndexError):
        slots[2]
    with pytest.raises(ValueError, match="no rows"):
        _collector_pack_shared_batch(replay, request_of(replay, snapshot_size=0), slots)
    slots.cleanup()
    replay.cleanup()


def test_rows_that_are_gone_are_drawn_again() -> None:
    replay = new_replay(64)
    slots, old = SharedSlots(COUNT, replay._storage.shape[1]), request_of(replay)
    replay.add(**packers.batch(64, 64))  # nothing of the snapshot is left
    assert _collector_pack_shared_batch(replay, old, slots)["redrawn"] == COUNT
    assert (slots[1] >= 64).all() and (slots[1] == slots[1][:, :1]).all()
    slots.cleanup()
    replay.cleanup()


def test_batches_while_another_process_adds() -> None:
    replay, stop = new_replay(0, capacity=64), _SPAWN_CTX.Event()
    slots = SharedSlots(COUNT, replay._storage.shape[1])
    process = _SPAWN_CTX.Process(target=packers.add_for_ever, args=(replay, stop))
    process.start()
    assert replay.rows.wait(64, 60)
    for seed in range(2000):
        _collector_pack_shared_batch(replay, request_of(replay, sample_seed=seed), slots)
        assert (slots[1] == slots[1][:, :1]).all(), "torn"
    stop.set()
    process.join()
    assert process.exitcode == 0
    slots.cleanup()
    replay.cleanup()


def test_a_batch_from_request_to_use() -> None:
    setup = Setup(new_replay(20))
    pipeline = setup.pipeline
    assert isinstance(pipeline, ReplayPipeline) and pipeline.transfer_manifest["backend"] == "TorchCopyReplayTransferBackend"
    for tick in range(3):
        assert pipeline.start_prepare(tick, COUNT) and not pipeline.start_prepare(tick, COUNT) and not pipeline.batch_ready(tick, COUNT)
        with pytest.raises(RuntimeError, match=f"the batch of tick {tick} was not fetched yet"):
            pipeline.start_prepare(tick + 1, COUNT)
        assert setup.serve() and not setup.serve()
        assert pipeline.wait_until_ready(tick, COUNT) and pipeline.batch_ready(tick, COUNT)
        batch = pipeline.sample_large_batch(tick, COUNT)
        assert torch.equal(batch["rewards"], setup.replay._storage[drawn(100 + tick, 20), setup.replay._rew_col])
        assert pipeline.metadata is not None and (pipeline.metadata.tick_id, pipeline.metadata.sample_seed) == (tick, 100 + tick)
        assert pipeline.sample_large_batch(tick, COUNT)["rewards"].data_ptr() == batch["rewards"].data_ptr() and not pipeline.batch_ready(9, COUNT)
        with pytest.raises(RuntimeError, match=f"Hot batch tick {tick} does not match"):
            pipeline.sample_large_batch(9, COUNT)
        pipeline.after_tick()
    with pytest.raises(ValueError, match="sample_count must match"):
        pipeline.start_prepare(3, COUNT + 1)
    setup.close()
    with pytest.raises(ClosedError):
        pipeline.start_prepare(3, COUNT)


def test_the_log_tells_how_long_each_batch_took(tmp_path: Path) -> None:
    setup = Setup(new_replay(20), verbose=True, verbose_output_dir=str(tmp_path / "new"))
    width = setup.replay._storage.shape[1]
    for tick in (3, 4):
        assert setup.pipeline.start_prepare(tick, COUNT) and setup.serve()
        setup.pipeline.sample_large_batch(tick, COUNT)
        setup.pipeline.after_tick()
    setup.close()
    with open(tmp_path / "new" / "verbose" / "pack_fields.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["tick_id"], line["slot"], line["field"]) for line in lines] == [("3", "1", "packed"), ("4", "0", "packed")]
    for line in lines:
        assert (int(line["rows"]), int(line["cols"]), int(line["bytes"])) == (COUNT, width, 4 * COUNT * width) and int(line["dur_ns"]) > 0


@pytest.mark.parametrize("options", [{}, {"verbose": True}, {"verbose_output_dir": "."}])
def test_without_verbose_and_a_folder_there_is_no_log(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    setup = Setup(new_replay(20), **options)
    assert setup.pipeline.start_prepare(0, COUNT) and setup.serve()
    setup.pipeline.sample_large_batch(0, COUNT)
    setup.close()
    assert list(tmp_path.iterdir()) == []


def test_the_next_batch_is_prepared_while_one_is_used() -> None:
    setup = Setup(new_replay(20))
    pipeline = setup.pipeline
    pipeline.start_prepare(0, COUNT)
    setup.serve()
    first = pipeline.sample_large_batch(0, COUNT)["rewards"]
    kept = first.clone()
    pipeline.start_prepare(1, COUNT)
    setup.serve()
    pipeline.wait_ready()
    assert torch.equal(first, kept)
    pipeline.after_tick()
    assert not torch.equal(pipeline.sample_large_batch(1, COUNT)["rewards"], kept)
    setup.close()


def test_a_request_can_wait_for_rows() -> None:
    setup = Setup(new_replay(8))
    setup.pipeline.start_prepare(0, COUNT, min_snapshot_ptr=12)
    served, pending = _service_collector_pack_requests(setup.replay, setup.requests, setup.packed, setup.slots)
    assert not served and pending is not None
    setup.replay.add(**packers.batch(8, 4))
    assert _service_collector_pack_requests(setup.replay, setup.requests, setup.packed, setup.slots, pending) == (True, None)
    setup.pipeline.sample_large_batch(0, COUNT)
    assert setup.pipeline.metadata is not None and setup.pipeline.metadata.snapshot_ptr == 12
    setup.close()


def test_what_was_not_requested_is_refused_and_it_goes_on() -> None:
    setup = Setup(new_replay(20))
    pipeline = setup.pipeline
    pipeline.start_prepare(0, COUNT)
    request = setup.requests.get()
    setup.packed.put(_collector_pack_shared_batch(setup.replay, request | {"tick_id": 5}, setup.slots))
    with pytest.raises(RuntimeError, match="packed a batch for tick 5, but that of tick 0 was requested"):
        pipeline.wait_until_ready(0, COUNT)
    assert pipeline.start_prepare(0, COUNT) and setup.serve() and pipeline.wait_until_ready(0, COUNT)
    setup.close()


def test_a_dead_collector_ends_the_wait() -> None:
    process: Any = None
    replay = new_replay(20)
    setup = Setup(replay, _SPAWN_CTX, collector_alive=lambda: bool(process.is_alive()), collector_death=lambda: f"it ended with {process.exitcode}")
    process = _SPAWN_CTX.Process(target=packers.die_at_a_request, args=(setup.requests,))
    process.start()
    setup.pipeline.start_prepare(0, COUNT)
    with pytest.raises(CollectorDiedError, match="it ended with 5"):
        setup.pipeline.wait_until_ready(0, COUNT)
    process.join()
    setup.close()
    for each in (setup.requests, setup.packed):
        each.close()
        each.join_thread()


def test_a_real_collector() -> None:
    replay, stop = new_replay(0, capacity=4000), _SPAWN_CTX.Event()
    setup = Setup(replay, _SPAWN_CTX)
    process = _SPAWN_CTX.Process(target=packers.add_and_pack, args=(replay, setup.requests, setup.packed, setup.slots, stop))
    process.start()
    for tick in range(50):
        batch = setup.pipeline.sample_large_batch(tick, COUNT)
        assert (batch["obs"] == batch["rewards"][:, None]).all() and (batch["dones"] == batch["rewards"]).all()
        metadata = setup.pipeline.metadata
        assert metadata is not None and (batch["rewards"] < metadata.snapshot_ptr).all()
        if metadata.redrawn == 0:
            first = metadata.snapshot_ptr - metadata.snapshot_size
            wanted = first + (drawn(100 + tick, metadata.snapshot_size) - first) % metadata.snapshot_size
            assert torch.equal(batch["rewards"], wanted.float())
        setup.pipeline.after_tick()
    stop.set()
    process.join()
    assert process.exitcode == 0
    setup.close()
    for each in (setup.requests, setup.packed):
        each.close()
        each.join_thread()


def test_arguments() -> None:
    replay = new_replay(8)
    with pytest.raises(ConfigError, match="needs collector_pack_request_queue"):
        CPUPinnedDoubleBufferReplayPipeline(replay, device="cpu", sample_count=COUNT)
    replay.cleanup()


# ---- devices with streams, with a module that looks like torch.cuda


class FakeModule:
    """Writes down what it is told, in order. Copies are over when `over` is set."""

    def __init__(self, refuse: int = -1) -> None:
        self.told: list[Any] = []
        self.registered: list[int] = []
        self.refuse, self.over = refuse, threading.Event()
        module = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.timing = enable_timing

            def record(self, stream: Any) -> None:
                module.told.append(("record", stream.name))

            def query(self) -> bool:
                return module.over.is_set()

            def synchronize(self) -> None:
                assert module.over.wait(60)

        class Stream:
            def __init__(self, device: Any = None, name: str = "side") -> None:
                self.name = name

            def wait_event(self, event: Any) -> None:
                module.told.append(("wait", self.name))

            def synchronize(self) -> None:
                module.told.append(("synchronize", self.name))

        self.Event, self.Stream, self.learner = Event, Stream, Stream(name="learner")

    def current_stream(self, device: Any) -> Any:
        return self.learner

    @contextmanager
    def device(self, device: Any) -> Any:
        yield

    stream = device

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        if len(self.registered) == self.refuse:
            return 2
        self.registered.append(pointer)
        return 0

    def cudaHostUnregister(self, pointer: int) -> None:
        assert self.told[-1:] == [("synchronize", "side")] or self.refuse >= 0, "no copy may be reading it"
        self.registered.remove(pointer)


class Recorder:
    def __init__(self) -> None:
        self.names: list[str] = []

    def add_slice(self, name: str, **more: Any) -> None:
        self.names.append(name)

    def add_cuda_pending_span(self, name: str, *, args: dict[str, Any], start_event: Any, end_event: Any, **more: Any) -> None:
        assert start_event.timing and end_event.timing and args["tick_id"] == 0 and args["sample_seed"] == 100
        assert args["slot"] == args["batch_host_slot"] == args["batch_gpu_slot"]
        self.names.append(name)


@pytest.mark.parametrize("kind", [CudaReplayTransferBackend, XpuReplayTransferBackend])
def test_copies_on_a_stream_of_their_own(kind: Any) -> None:
    module, recorder = FakeModule(), Recorder()
    backend = kind(device=torch.device("cpu"), ring_depth=2, module=module)
    setup = Setup(new_replay(20), backend=backend, trace_recorder=recorder)
    pipeline, cuda = setup.pipeline, kind is CudaReplayTransferBackend
    assert len(module.registered) == (2 if cuda else 0) and pipeline.transfer_manifest["host_pinned"] is cuda
    pipeline.start_prepare(0, COUNT)
    assert module.told == [("record", "learner")], "what the learner has told the device until now"
    setup.serve()
    while len(module.told) < (5 if cuda else 3):
        assert pipeline._thread.is_alive()
    timed = [("record", "side")] if cuda else []
    assert module.told[1:] == [("wait", "side"), *timed, ("record", "side"), *timed], "it is copied over only after that"
    assert not pipeline.batch_ready(0, COUNT)
    module.over.set()
    batch = pipeline.sample_large_batch(0, COUNT)
    assert module.told[-1] == ("wait", "learner")
    assert torch.equal(batch["rewards"], setup.replay._storage[drawn(100, 20), setup.replay._rew_col])
    assert ("gpu/replay_pipeline_batch_h2d" in recorder.names) is cuda and "replay_pipeline/hot_cold_swap" in recorder.names
    setup.close()
    assert module.registered == []


def test_a_driver_that_cannot_pin() -> None:
    module = FakeModule(refuse=1)
    backend = CudaReplayTransferBackend(device=torch.device("cpu"), ring_depth=2, module=module)
    with pytest.raises(EchoError, match=r"cannot pin slot 1 of 256 bytes \(error 2\)"):
        backend.register_host_slots([torch.zeros(8, 8), torch.zeros(8, 8)])
    assert module.registered == [] and not backend.host_pinned


def test_a_copy_that_fails_is_told() -> None:
    backend: Any = build_replay_transfer_backend(device=torch.device("cpu"), ring_depth=2)
    works, backend.submit_h2d = backend.submit_h2d, lambda **more: (_ for _ in ()).throw(OSError("no device"))
    setup = Setup(new_replay(20), backend=backend)
    setup.pipeline.start_prepare(0, COUNT)
    setup.serve()
    with pytest.raises(OSError, match="no device"):
        setup.pipeline.wait_until_ready(0, COUNT)
    backend.submit_h2d = works
    assert setup.pipeline.start_prepare(0, COUNT) and setup.serve()
    assert np.isfinite(setup.pipeline.sample_large_batch(0, COUNT)["rewards"].numpy()).all()
    setup.close()
