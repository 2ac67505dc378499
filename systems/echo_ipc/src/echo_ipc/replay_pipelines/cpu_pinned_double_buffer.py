"""Two batches: the learner uses one, while a collector packs the other and it is copied to the device."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from echo_core.base.errors import ClosedError, ConfigError

from ..async_runner import CollectorDiedError
from ..replay_buffer import ReplayBuffer
from .base import ReplayTickMetadata
from .pack_log import PackLog
from .transfer import ReplayTransferBackend, build_replay_transfer_backend

__all__ = ["CPUPinnedDoubleBufferReplayPipeline"]

LOOK_SECONDS = 0.1  # how often waits look whether the collector lives
DEPTH = 2


class CPUPinnedDoubleBufferReplayPipeline:
    """Prepares the batch of the next tick during this one.

    A batch is idle, then requested (of a collector, which packs it with `_service_collector_pack_requests`), submitted (its copy to the device is going on),
    ready, and hot (the learner uses it, until after_tick).

    Args:
        replay_buffer: where rows are drawn from.
        device: of the learner, for torch.
        sample_count: how many rows every batch has.
        base_seed: the draw of tick t has the seed `base_seed + t`.
        trace_recorder, trace_cuda_events: an object that is told how long each part took, and whether the device measures copies for it.
        verbose, verbose_output_dir: write how long the collector took to pack each batch into `verbose_output_dir`/verbose/pack_fields.csv; see `PackLog`.
        collector_pack_request_queue, collector_pack_ready_queue: two queues that the collector has, too.
        collector_pack_shared_slots: two tensors float32 [sample_count, width] that it has, too: `SharedSlots`.
        collector_alive: says whether the collector lives; waits end with CollectorDiedError when it does not.
        collector_death: says what happened to it. `AsyncRunner` has both: `_check_collector_alive`, `_read_collector_error`.
        backend: copies the batches; None: that for the device.

    Raises ConfigError if a queue or the slots are missing.
    """

    def __init__(
        self,
        replay_buffer: ReplayBuffer,
        *,
        device: str,
        sample_count: int,
        base_seed: int = 0,
        trace_recorder: Any = None,
        trace_cuda_events: bool = True,
        verbose: bool = False,
        verbose_output_dir: str | None = None,
        collector_pack_request_queue: Any = None,
        collector_pack_ready_queue: Any = None,
        collector_pack_shared_slots: Any = None,
        collector_alive: Callable[[], bool] | None = None,
        collector_death: Callable[[], str] | None = None,
        backend: ReplayTransferBackend | None = None,
    ) -> None:
        import torch

        if collector_pack_request_queue is None or collector_pack_ready_queue is None or collector_pack_shared_slots is None:
            raise ConfigError("a replay pipeline needs collector_pack_request_queue, collector_pack_ready_queue and collector_pack_shared_slots")
        self._replay_buffer, self._sample_count, self._base_seed = replay_buffer, int(sample_count), base_seed
        self._device = torch.device(device)
        self._trace_recorder = trace_recorder
        self._verbose, self._verbose_output_dir = verbose, verbose_output_dir if verbose else None
        self._verbose_pack_records: list[Any] | None = [] if verbose else None  # upstream's name; its learner packed once, and ours never does
        self._pack_log = PackLog(verbose_output_dir) if verbose and verbose_output_dir else None
        self._collector_pack_request_queue, self._collector_pack_ready_queue = collector_pack_request_queue, collector_pack_ready_queue
        self._collector_pack_shared_slots = collector_pack_shared_slots
        self._collector_alive, self._collector_death = collector_alive, collector_death
        self._backend = backend or build_replay_transfer_backend(device=self._device, ring_depth=DEPTH)
        self._trace_cuda_events = bool(trace_cuda_events) and self._backend.supports_timing_events
        self._sources = [collector_pack_shared_slots[index] for index in range(DEPTH)]
        self._backend.register_host_slots(collector_pack_shared_slots)
        width = replay_buffer.rows.row_bytes // 4
        self._gpu_packed = self._backend.allocate_device_slots(count=DEPTH, shape=(self._sample_count, width), dtype=torch.float32)
        self._host_packed: list[Any] = []  # upstream's names; there is nothing between the shared slots and the device
        self._host: list[Any] = []
        self._gpu: list[Any] = []
        self._hot, self._cold = 0, 1
        self._has_hot_batch = False
        self._hot_metadata: ReplayTickMetadata | None = None
        self._prepared_metadata: ReplayTickMetadata | None = None
        self._prepare_tick_id: int | None = None
        self._prepare_error: BaseException | None = None
        self._condition = threading.Condition()
        self._closed = False
        self.last_incremental_h2d_time_s = 0.0
        self._thread = threading.Thread(target=self._submit_what_is_packed, name="echo-ipc-replay-h2d", daemon=True)
        self._thread.start()

    # ---- what there is

    @property
    def _host_pinned(self) -> bool:
        return self._backend.host_pinned

    @property
    def _h2d_submitter(self) -> str:
        return self._backend.h2d_submitter

    @property
    def h2d_submitter(self) -> str:
        return self._backend.h2d_submitter

    @property
    def metadata(self) -> ReplayTickMetadata | None:
        """How the batch that the learner uses was drawn; None if it uses none."""
        return self._hot_metadata

    @property
    def transfer_manifest(self) -> dict[str, object]:
        """How batches get to the device."""
        backend = self._backend
        return {
            "backend": type(backend).__name__,
            "device": str(self._device),
            "device_family": backend.device_family,
            "host_memory_kind": backend.host_memory_kind,
            "host_pinned": backend.host_pinned,
            "direct_pinned_shared": backend.direct_pinned_shared,
            "supports_async_submit": backend.supports_async_submit,
            "supports_timing_events": backend.supports_timing_events,
            "h2d_submitter": backend.h2d_submitter,
            "ring_depth": DEPTH,
        }

    def _packed_h2d_source(self, slot: int) -> Any:
        return self._sources[slot]

    # ---- the learner's side

    def start_prepare(self, tick_id: int, sample_count: int, min_snapshot_ptr: int | None = None) -> bool:
        """Request the batch of a tick. It may have rows that are added until it is packed.

        Args:
            min_snapshot_ptr: do not pack it before so many rows were added altogether. None: those that are there.

        Returns:
            False if it was requested already.

        Raises:
            ValueError: `sample_count` is not that of the pipeline.
            RuntimeError: the batch of another tick was requested and not fetched yet.
            ClosedError: after close().
            Whatever failed while a batch was prepared before; after that, one can be requested again.
        """
        self._check(sample_count)
        with self._condition:
            self._raise_failure()
            if self._prepare_tick_id is not None:
                if self._prepare_tick_id == int(tick_id):
                    return False
                raise RuntimeError(f"the batch of tick {self._prepare_tick_id} was not fetched yet; fetch it before tick {tick_id} is prepared")
            slot = self._cold
            self._backend.clear_ready(slot)
            first, end = self._replay_buffer.rows.window()
            request = {
                "tick_id": int(tick_id),
                "snapshot_ptr": end,
                "snapshot_size": end - first,
                "min_snapshot_ptr": end if min_snapshot_ptr is None else int(min_snapshot_ptr),
                "sample_seed": self._base_seed + int(tick_id),
                "sample_count": self._sample_count,
                "shared_slot": slot,
                "learner_hot_gpu_slot": self._hot,
                "target_gpu_slot": slot,
                "pack_layout": "packed",
                "pack_executor": "collector_thread",
            }
            self._prepare_tick_id = int(tick_id)
        self._trace("collector_pack_request", time.perf_counter_ns(), request)
        self._collector_pack_request_queue.put(request)
        return True

    def batch_ready(self, tick_id: int, sample_count: int) -> bool:
        """Whether sample_large_batch of this tick would not wait. Raises as start_prepare."""
        self._check(sample_count)
        if self._has_hot_batch:
            return self._hot_metadata is None or self._hot_metadata.tick_id == int(tick_id)
        with self._condition:
            self._raise_failure()
            found = self._prepared_metadata
        return found is not None and found.tick_id == int(tick_id) and self._backend.ready_query(self._cold)

    def wait_ready(self) -> None:
        """Wait until the batch that was requested, if there is one, is ready. Raises as wait_until_ready."""
        if self._prepare_tick_id is not None:
            self.wait_until_ready(self._prepare_tick_id, self._sample_count)

    def wait_until_ready(self, tick_id: int, sample_count: int) -> bool:
        """Wait until the batch of this tick is on the device; request it if that was not done yet. Returns True.

        Raises CollectorDiedError if the collector is dead, and as start_prepare.
        """
        self.start_prepare(tick_id, sample_count)
        looked = time.monotonic()
        with self._condition:
            while self._prepared_metadata is None:
                self._raise_failure()
                if not self._condition.wait(LOOK_SECONDS) or time.monotonic() - looked > LOOK_SECONDS:
                    self._check_collector()
                    looked = time.monotonic()
        self._backend.synchronize_ready(self._cold)
        return True

    def sample_large_batch(self, tick_id: int, sample_count: int) -> dict[str, Any]:
        """The batch of this tick: parts of one tensor on the device, as `ReplayBuffer.sample` returns them. They may be used until after_tick().

        Raises RuntimeError if the batch of another tick is in use, and as wait_until_ready.
        """
        self._check(sample_count)
        if self._has_hot_batch:
            assert self._hot_metadata is not None
            if self._hot_metadata.tick_id != int(tick_id):
                raise RuntimeError(f"Hot batch tick {self._hot_metadata.tick_id} does not match requested tick {tick_id}; call after_tick() first")
            return self._replay_buffer._fields(self._gpu_packed[self._hot])
        if not self.batch_ready(tick_id, sample_count):
            self.wait_until_ready(tick_id, sample_count)
        slot, started = self._cold, time.perf_counter_ns()
        self._backend.wait_current_stream_for_ready(slot)
        self.last_incremental_h2d_time_s = getattr(self._backend, "last_wait_copy_time_s", 0.0) or self.last_incremental_h2d_time_s
        for name in ("batch_h2d_wait", "gpu_wait_for_batch"):
            self._trace(name, started, {"tick_id": tick_id, "batch_gpu_slot": slot})
        started = time.perf_counter_ns()
        with self._condition:
            self._hot, self._cold = self._cold, self._hot
            self._has_hot_batch, self._hot_metadata = True, self._prepared_metadata
            self._prepared_metadata = self._prepare_tick_id = None
        args = {"tick_id": tick_id, "old_hot": self._cold, "old_cold": self._hot, "new_hot": self._hot, "new_cold": self._cold}
        self._trace("hot_cold_swap", started, args)
        return self._replay_buffer._fields(self._gpu_packed[self._hot])

    def after_tick(self) -> None:
        """The learner does not use the batch any more."""
        self._has_hot_batch = False
        self._hot_metadata = None

    def close(self) -> None:
        """End the thread, wait for copies, and unpin the slots. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._thread.join()
        self._backend.close()
        self._gpu_packed.clear()
        self._sources.clear()

    def _check(self, sample_count: int) -> None:
        if int(sample_count) != self._sample_count:
            raise ValueError(f"sample_count must match that of the pipeline, {self._sample_count}, but is {sample_count}")
        if self._closed:
            raise ClosedError("the replay pipeline was closed")

    def _raise_failure(self) -> None:
        error, self._prepare_error = self._prepare_error, None
        if error is not None:
            self._prepared_metadata = self._prepare_tick_id = None
            raise error

    def _check_collector(self) -> None:
        if self._collector_alive is not None and not self._collector_alive():
            self._prepared_metadata = self._prepare_tick_id = None
            with suppress(queue.Empty):
                while True:  # another collector must not pack what is requested again
                    self._collector_pack_request_queue.get_nowait()
            raise CollectorDiedError("the collector that packs batches has ended" if self._collector_death is None else self._collector_death())

    # ---- the thread

    def _submit_what_is_packed(self) -> None:
        while not self._closed:
            try:
                ready = self._collector_pack_ready_queue.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            except (OSError, ValueError, EOFError):
                return  # somebody closed the queue
            if ready is None:
                return
            try:
                metadata = self._submit(ready)
            except BaseException as error:
                with self._condition:
                    self._prepare_error = error
                    self._condition.notify_all()
                continue
            with self._condition:
                self._prepared_metadata = metadata
                self._condition.notify_all()

    def _submit(self, ready: dict[str, Any]) -> ReplayTickMetadata:
        slot, tick = int(ready["target_gpu_slot"]), int(ready["tick_id"])
        with self._condition:
            if tick != self._prepare_tick_id or self._prepared_metadata is not None:
                raise RuntimeError(f"the collector packed a batch for tick {tick}, but that of tick {self._prepare_tick_id} was requested")
            if slot != self._cold or int(ready["shared_slot"]) != slot:
                raise RuntimeError(f"the collector packed into slot {ready['shared_slot']} for slot {slot}, but slot {self._cold} was requested")
        snapshot = {name: int(ready[name]) for name in ("snapshot_ptr", "snapshot_size", "sample_seed", "sample_count")}
        metadata = ReplayTickMetadata(tick, **snapshot, batch_host_slot=slot, batch_gpu_slot=slot, redrawn=int(ready.get("redrawn", 0)))
        source, started = self._sources[slot], time.perf_counter_ns()
        size = source.numel() * source.element_size()
        if self._pack_log is not None and "pack_ns" in ready:
            self._pack_log.add(tick, slot, source.shape[0], source.shape[1], size, int(ready["pack_ns"]))
        self.last_incremental_h2d_time_s = self._backend.submit_h2d(
            slot=slot,
            dst=self._gpu_packed[slot],
            src=source,
            metadata=metadata,
            trace_recorder=self._trace_recorder,
            trace_cuda_events=self._trace_cuda_events,
            h2d_bytes=size,
            pack_layout="packed",
            pack_executor="collector_thread",
        )
        args = {"tick_id": tick, "batch_gpu_slot": slot, "shared_slot": slot, "h2d_bytes": size, "h2d_submitted": True, "redrawn": metadata.redrawn}
        args |= {"pack_layout": "packed", "pack_executor": "collector_thread", "pinned_memory": self._host_pinned, "transfer_worker_submit": True}
        self._trace("batch_h2d_submit", started, args | self.transfer_manifest)
        return metadata

    def _trace(self, name: str, started: int, args: dict[str, Any]) -> None:
        if self._trace_recorder is not None:
            end = time.perf_counter_ns()
            self._trace_recorder.add_slice(f"replay_pipeline/{name}", category="replay_pipeline", start_ns=started, end_ns=end, args=args)
