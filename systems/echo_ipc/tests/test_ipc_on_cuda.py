"""The same with a GPU: tensors of the device go in, and come out there. The order of copies and streams is in test_replay_pipelines.py."""

from __future__ import annotations

import queue
from typing import Any

import packers
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from echo_ipc import ReplayBuffer, RolloutRingBuffer, SharedObsNormStats, SharedWeightSync  # noqa: E402
from echo_ipc.async_runner import _SPAWN_CTX  # noqa: E402
from echo_ipc.replay_pipelines import CPUPinnedDoubleBufferReplayPipeline, SharedSlots  # noqa: E402
from echo_ipc.replay_pipelines.collector import _service_collector_pack_requests  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")

COUNT = 1024


def pipeline_of(replay: ReplayBuffer, count: int, requests: Any, packed: Any, slots: SharedSlots, **more: Any) -> CPUPinnedDoubleBufferReplayPipeline:
    queues = {"collector_pack_request_queue": requests, "collector_pack_ready_queue": packed}
    return CPUPinnedDoubleBufferReplayPipeline(replay, device="cuda", sample_count=count, base_seed=100, collector_pack_shared_slots=slots, **queues, **more)


def test_weights_from_the_device_and_into_it() -> None:
    model, here, there = (torch.nn.Sequential(torch.nn.Linear(64, 33), torch.nn.BatchNorm1d(33)) for _ in range(3))
    model.cuda()(torch.randn(8, 64, device="cuda"))
    for mine in (here, there.cuda()):
        sync = SharedWeightSync.from_state_dict(model.state_dict())
        sync.write_weights(model.state_dict())
        sync.read_weights_into(mine.state_dict())
        assert all(torch.equal(value.cpu(), mine.state_dict()[name].cpu()) for name, value in model.state_dict().items())
        sync.cleanup()


def test_transitions_and_rollouts() -> None:
    replay = ReplayBuffer(32, 4, 2, "cuda")
    numbers = torch.arange(16.0, device="cuda")
    rows = numbers[:, None]
    replay.add(rows.expand(16, 4), rows.expand(16, 2), numbers, rows.expand(16, 4), numbers > 7, numbers > 11)
    batch = replay.sample(200)
    assert all(tensor.is_cuda for tensor in batch.values())
    assert torch.equal(batch["obs"], batch["rewards"][:, None].expand(200, 4)) and torch.equal(batch["dones"], (batch["rewards"] > 7).float())
    replay.cleanup()

    ring = RolloutRingBuffer(4, 3, 5, 2, num_slots=2)
    for number, array in enumerate(ring.write_buffer.values()):
        array[...] = number
    ring.signal_write_done()
    found = ring.read_torch("cuda")
    mine = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
    ring.copy_read_slot_to_torch(mine)
    for tensors in (found, mine):
        assert all(tensor.is_cuda and (tensor == number).all() for number, tensor in enumerate(tensors.values()))
    ring.cleanup()

    stats = SharedObsNormStats(None)
    stats.put((torch.arange(3.0, device="cuda"), torch.ones(3, device="cuda"), 7))
    assert torch.equal(stats.get()[0].cpu(), torch.arange(3.0))
    stats.cleanup()


class Spans:
    """A recorder that keeps the events of the copies that the device has timed."""

    def __init__(self) -> None:
        self.spans: list[tuple[Any, Any]] = []

    def add_slice(self, name: str, **more: Any) -> None:
        pass

    def add_cuda_pending_span(self, name: str, *, start_event: Any, end_event: Any, **more: Any) -> None:
        self.spans.append((start_event, end_event))


@pytest.mark.parametrize("traced", [False, True])
def test_batches_are_copied_on_a_stream_while_the_learner_computes(traced: bool) -> None:
    """The learner's stream is busy for long when a batch arrives; each batch is whole nevertheless, and the one in use is not written over."""
    replay, stop, spans = ReplayBuffer(4000, packers.OBS, packers.ACTION, "cpu"), _SPAWN_CTX.Event(), Spans()
    slots = SharedSlots(COUNT, replay._storage.shape[1])
    requests, packed = _SPAWN_CTX.Queue(), _SPAWN_CTX.Queue()
    pipeline = pipeline_of(replay, COUNT, requests, packed, slots, **({"trace_recorder": spans} if traced else {}))
    assert pipeline.transfer_manifest["backend"] == "CudaReplayTransferBackend" and pipeline.transfer_manifest["host_pinned"]
    process = _SPAWN_CTX.Process(target=packers.add_and_pack, args=(replay, requests, packed, slots, stop))
    process.start()
    square = torch.randn(2048, 2048, device="cuda")
    sums = []
    for tick in range(30):
        batch = pipeline.sample_large_batch(tick, COUNT)
        pipeline.start_prepare(tick + 1, COUNT)
        for _ in range(20):
            square = torch.tanh(square @ square)
        assert all(tensor.is_cuda for tensor in batch.values())
        sums.append(torch.stack([(batch["obs"] - batch["rewards"][:, None]).abs().max(), (batch["dones"] - batch["rewards"]).abs().max()]))
        pipeline.after_tick()
    assert float(torch.stack(sums).abs().max()) == 0.0
    if traced:
        torch.cuda.synchronize()
        assert len(spans.spans) >= 30 and all(begun.elapsed_time(ended) > 0 for begun, ended in spans.spans[:30])
    stop.set()
    process.join(60)
    assert process.exitcode == 0
    pipeline.close()
    slots.cleanup()
    replay.cleanup()
    for each in (requests, packed):
        each.close()
        each.join_thread()


def test_a_batch_is_the_draw_that_was_requested() -> None:
    """A collector in this process, with queues of threads."""
    replay = ReplayBuffer(64, packers.OBS, packers.ACTION, "cpu")
    replay.add(**packers.batch(0, 8))
    slots = SharedSlots(8, replay._storage.shape[1])
    requests, packed = queue.Queue(), queue.Queue()
    pipeline = pipeline_of(replay, 8, requests, packed, slots)
    assert pipeline.start_prepare(0, 8) and _service_collector_pack_requests(replay, requests, packed, slots)[0]
    batch = pipeline.sample_large_batch(0, 8)
    wanted = replay._storage[torch.randint(0, 8, (8,), generator=torch.Generator().manual_seed(100)), replay._rew_col]
    assert torch.equal(batch["rewards"].cpu(), wanted)
    pipeline.close()
    slots.cleanup()
    replay.cleanup()
