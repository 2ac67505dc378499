"""Two batches: the learner uses one, while a collector packs the other and it is copied to the device."""

from __future__ import annotations

import csv
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from echo_core.base.errors import ClosedError, ConfigError

from ..collector_error import CollectorDiedError
from ..replay_buffer import ReplayBuffer
from .base import ReplayTickMetadata
from .transfer import ReplayTransferBackend, build_replay_transfer_backend

__all__ = ["CPUPinnedDoubleBufferReplayPipeline"]

LOOK_SECONDS = 0.1  # how often waits look whether the collector lives
DEPTH = 2
PACKED = {"pack_layout": "packed", "pack_executor": "collector_thread"}
DESCRIBED = ("device_family", "host_memory_kind", "host_pinned", "direct_pinned_shared", "supports_async_submit", "supports_timing_events", "h2d_submitter")


class CPUPinnedDoubleBufferReplayPipeline:
    """Prepares the batch of the next tick during this one: it is requested, packed by `_service_collector_pack_requests`, copied, and used until after_tick.

    Args:
        device, sample_count: of the learner, for torch, and how many rows every batch has.
        base_seed: the draw of tick t has the seed `base_seed + t`.
        trace_recorder, trace_cuda_events: an object that is told how long each part took, and whether the device measures copies for it.
        verbose, verbose_output_dir: write how long the collector took to pack each batch into `verbose_output_dir`/verbose/pack_fields.csv.
        collector_pack_request_queue, collector_pack_ready_queue, collector_pack_shared_slots: two queues and `SharedSlots`, which the collector has, too.
        collector_alive: says whether the collector lives; None: ask the list of processes in the memory of `replay_buffer`.
        collector_death: says what happened to it. `AsyncRunner` has both: `_check_collector_alive`, `_read_collector_error`.
        backend: copies the batches; None: that for the device.
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

        slots, self._requests, self._packed = collector_pack_shared_slots, collector_pack_request_queue, collector_pack_ready_queue
        if self._requests is None or self._packed is None or slots is None:
            raise ConfigError("a replay pipeline needs collector_pack_request_queue, collector_pack_ready_queue and collector_pack_shared_slots")
        self._replay_buffer, self._sample_count, self._base_seed = replay_buffer, int(sample_count), base_seed
        self._collector_alive, self._collector_death = collector_alive, collector_death
        self._log = Path(verbose_output_dir) / "verbose" / "pack_fields.csv" if verbose and verbose_output_dir else None
        self._write("w", ["tick_id", "slot", "field", "rows", "cols", "bytes", "dur_ns"])
        self._backend = backend or build_replay_transfer_backend(device=torch.device(device), ring_depth=DEPTH)
        self.h2d_submitter = self._backend.h2d_submitter
        self._trace_recorder, self._trace_cuda_events = trace_recorder, bool(trace_cuda_events) and self._backend.supports_timing_events
        self._sources = [slots[index] for index in range(DEPTH)]
        self._backend.register_host_slots(slots)
        self._gpu_packed = self._backend.allocate_device_slots(count=DEPTH, shape=tuple(self._sources[0].shape), dtype=torch.float32)
        self._hot = 0  # the slot of the batch that the learner uses, or used; the next one is prepared in the other slot
        self._hot_metadata: ReplayTickMetadata | None = None
        self._requested: int | None = None  # the tick whose batch is being prepared
        self._prepared: ReplayTickMetadata | BaseException | None = None  # what has come of it
        self._condition, self._closed, self.last_incremental_h2d_time_s = threading.Condition(), False, 0.0
        self._thread = threading.Thread(target=self._submit_what_is_packed, name="echo-ipc-replay-h2d", daemon=True)
        self._thread.start()

    @property
    def metadata(self) -> ReplayTickMetadata | None:
        """How the batch that the learner uses was drawn; None if it uses none."""
        return self._hot_metadata

    @property
    def transfer_manifest(self) -> dict[str, object]:
        """How batches get to the device."""
        backend = self._backend
        names = {"backend": type(backend).__name__, "device": str(backend.device), "ring_depth": DEPTH}
        return names | {name: getattr(backend, name) for name in DESCRIBED}

    # ---- the learner's side

    def start_prepare(self, tick_id: int, sample_count: int, min_snapshot_ptr: int | None = None) -> bool:
        """Request the batch of a tick, which is packed when `min_snapshot_ptr` rows were added (None: those that are there). False if it was requested before.

        Raises ValueError if `sample_count` is not that of the pipeline, RuntimeError if the batch of another tick was requested and not fetched yet,
        ClosedError after close(), and whatever failed while a batch was prepared before; after that, one can be requested again.
        """
        self._check(sample_count)
        with self._condition:
            self._raise_failure()
            if self._requested is not None:
                if self._requested == int(tick_id):
                    return False
                raise RuntimeError(f"the batch of tick {self._requested} was not fetched yet; fetch it before tick {tick_id} is prepared")
            slot = 1 - self._hot
            self._backend.clear_ready(slot)
            first, end = self._replay_buffer.rows.window()
            request = {"tick_id": int(tick_id), "sample_seed": self._base_seed + int(tick_id), "sample_count": self._sample_count}
            request |= {"snapshot_ptr": end, "snapshot_size": end - first, "min_snapshot_ptr": end if min_snapshot_ptr is None else int(min_snapshot_ptr)}
            request |= {"shared_slot": slot, "target_gpu_slot": slot, "learner_hot_gpu_slot": self._hot}
            self._requested = int(tick_id)
        self._trace("collector_pack_request", time.perf_counter_ns(), request | PACKED)
        self._requests.put(request | PACKED)
        return True

    def batch_ready(self, tick_id: int, sample_count: int) -> bool:
        """Whether sample_large_batch of this tick would not wait. Raises as start_prepare."""
        self._check(sample_count)
        if self._hot_metadata is not None:
            return self._hot_metadata.tick_id == int(tick_id)
        with self._condition:
            self._raise_failure()
            return self._prepared is not None and self._requested == int(tick_id) and self._backend.ready_query(1 - self._hot)

    def wait_ready(self) -> None:
        """Wait until the batch that was requested, if there is one, is ready. Raises as wait_until_ready."""
        if self._requested is not None:
            self.wait_until_ready(self._requested, self._sample_count)

    def wait_until_ready(self, tick_id: int, sample_count: int) -> bool:
        """Wait until the batch of this tick is on the device; request it if that was not done yet. Returns True.

        Raises CollectorDiedError if the collector is dead, and as start_prepare.
        """
        self.start_prepare(tick_id, sample_count)
        with self._condition:
            while self._prepared is None:
                if not self._condition.wait(LOOK_SECONDS):
                    self._check(sample_count)
                    self._check_collector()
            self._raise_failure()
        self._backend.synchronize_ready(1 - self._hot)
        return True

    def sample_large_batch(self, tick_id: int, sample_count: int) -> dict[str, Any]:
        """The batch of this tick: parts of one tensor on the device, as `ReplayBuffer.sample` returns them. They may be used until after_tick().

        Raises RuntimeError if the batch of another tick is in use, and as wait_until_ready.
        """
        if self._hot_metadata is not None and self._hot_metadata.tick_id != int(tick_id):
            raise RuntimeError(f"Hot batch tick {self._hot_metadata.tick_id} does not match requested tick {tick_id}; call after_tick() first")
        if not self.batch_ready(tick_id, sample_count):
            self.wait_until_ready(tick_id, sample_count)
        if self._hot_metadata is None:
            old, new, started = self._hot, 1 - self._hot, time.perf_counter_ns()
            self._backend.wait_current_stream_for_ready(new)
            for name in ("batch_h2d_wait", "gpu_wait_for_batch"):
                self._trace(name, started, {"tick_id": tick_id, "batch_gpu_slot": new})
            started = time.perf_counter_ns()
            with self._condition:
                assert isinstance(self._prepared, ReplayTickMetadata)
                self._hot, self._hot_metadata, self._prepared, self._requested = new, self._prepared, None, None
            self._trace("hot_cold_swap", started, {"tick_id": tick_id, "old_hot": old, "old_cold": new, "new_hot": new, "new_cold": old})
        return self._replay_buffer._fields(self._gpu_packed[self._hot])

    def after_tick(self) -> None:
        """The learner does not use the batch any more."""
        self._hot_metadata = None

    def close(self) -> None:
        """End the thread, wait for copies, and unpin the slots. A second call does nothing."""
        if not self._closed:
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
        if isinstance(self._prepared, BaseException):
            error, self._prepared, self._requested = self._prepared, None, None
            raise error

    def _check_collector(self) -> None:
        death: object = None
        if self._collector_alive is None:
            death = self._replay_buffer.rows.ended()
        elif not self._collector_alive():
            death = self._collector_death() if self._collector_death else "the collector that packs batches has ended"
        if death is not None:
            self._requested = None
            with suppress(queue.Empty):
                while True:  # another collector must not pack what is requested again
                    self._requests.get_nowait()
            raise CollectorDiedError(str(death))

    # ---- the thread

    def _submit_what_is_packed(self) -> None:
        while not self._closed:
            try:
                ready = self._packed.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            except (OSError, ValueError, EOFError):
                return  # somebody closed the queue
            if ready is None:
                return
            try:
                found: ReplayTickMetadata | BaseException = self._submit(ready)
            except BaseException as error:
                found = error
            with self._condition:
                self._prepared = found
                self._condition.notify_all()

    def _submit(self, ready: dict[str, Any]) -> ReplayTickMetadata:
        tick, slot, started = int(ready["tick_id"]), 1 - self._hot, time.perf_counter_ns()
        if tick != self._requested or self._prepared is not None:
            raise RuntimeError(f"the collector packed a batch for tick {tick}, but that of tick {self._requested} was requested")
        if not slot == int(ready["target_gpu_slot"]) == int(ready["shared_slot"]):
            raise RuntimeError(f"the collector packed into slot {ready['shared_slot']} for slot {ready['target_gpu_slot']}, but slot {slot} was requested")
        drawn = {name: int(ready.get(name, 0)) for name in ("snapshot_ptr", "snapshot_size", "sample_seed", "sample_count", "redrawn")}
        metadata, source = ReplayTickMetadata(tick, batch_host_slot=slot, batch_gpu_slot=slot, **drawn), self._sources[slot]
        size = source.numel() * source.element_size()
        # All fields of a row are packed at once, so there is one line for all of them.
        self._write("a", [tick, slot, "packed", *source.shape, size, ready.get("pack_ns", 0)])
        traced: dict[str, Any] = {"trace_recorder": self._trace_recorder, "trace_cuda_events": self._trace_cuda_events, "h2d_bytes": size} | PACKED
        self.last_incremental_h2d_time_s = self._backend.submit_h2d(slot=slot, dst=self._gpu_packed[slot], src=source, metadata=metadata, **traced)
        args = {"tick_id": tick, "batch_gpu_slot": slot, "shared_slot": slot, "h2d_bytes": size, "h2d_submitted": True, "redrawn": metadata.redrawn}
        args |= {"pinned_memory": self._backend.host_pinned, "transfer_worker_submit": True} | PACKED
        self._trace("batch_h2d_submit", started, args | self.transfer_manifest)
        return metadata

    def _write(self, mode: str, line: list[Any]) -> None:
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with open(self._log, mode, newline="") as file:
                csv.writer(file).writerow(line)

    def _trace(self, name: str, started: int, args: dict[str, Any]) -> None:
        if self._trace_recorder is not None:
            end = time.perf_counter_ns()
            self._trace_recorder.add_slice(f"replay_pipeline/{name}", category="replay_pipeline", start_ns=started, end_ns=end, args=args)
