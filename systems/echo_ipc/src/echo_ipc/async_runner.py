"""A learner with collectors in processes of their own: `AsyncRunner` as unilab.ipc has it."""

from __future__ import annotations

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from echo_core.base.errors import ClosedError, ConfigError, EchoTimeoutError

from .collector_error import CollectorDiedError
from .collector_process import _SPAWN_CTX as _SPAWN_CTX
from .collector_process import EXPECTED, CollectorProcess, death_of, end_all, end_group
from .segments.handle import handles_of
from .segments.ring import Ring
from .stop_event import StopEvent

__all__ = ["AsyncRunner", "CollectorDiedError"]

RESTARTS = ("never", "on_crash")
MOST_RESTARTS = 10  # of one collector, without as many minutes between them
AGAIN_SECONDS = 1.0  # between two tries to start a collector again if the system refuses a new process
PROGRESS_SECONDS = 1.0
LEAVING_SECONDS = 1.0  # until close() gives up shared memory, which ends the waits of collectors


class AsyncRunner(ABC):
    """Base of a learner: it starts collectors, watches them, ends them, and gives back what they share.

    A collector that fails sets the stop event, and its whole traceback reaches the learner. Collectors end within seconds of their learner's death, whatever
    they are doing, and the processes that they have started end with them.

    Args:
        env_name, env_cfg_overrides, rl_cfg, sim_backend, num_envs: are kept under these names, for subclasses.
        device: where the learner computes; None: what `_get_default_device()` returns.
        collector_device: where collectors do; None: as the learner.
        num_collectors: how many processes `_start_collector` starts. Several also get `collector_index`, from 0 on.
        restart: "on_crash": `_check_collector_alive` starts a collector again that failed, at most ten times in ten minutes; "never". If the system refuses
            the new process, such as when too many files are open, this is told and counted, and it is tried again.
        stop_timeout: seconds that `close` gives collectors to end after the stop event is set. Those that wait for shared memory end after a second.
        term_timeout: seconds until it kills them after SIGTERM, which follows.

    Raises ConfigError if `num_collectors` is below one or `restart` is another word.

    Attributes:
        trace_recorder, trace_thread_time: for subclasses, to trace with; None and False at first.
    """

    def __init__(
        self,
        env_name: str,
        env_cfg_overrides: dict[str, Any],
        rl_cfg: dict[str, Any],
        *,
        device: str | None = None,
        collector_device: str | None = None,
        sim_backend: str = "mujoco",
        num_envs: int = 4096,
        num_collectors: int = 1,
        restart: str = "never",
        stop_timeout: float = 10.0,
        term_timeout: float = 5.0,
    ) -> None:
        if num_collectors < 1:
            raise ConfigError(f"num_collectors must be at least 1, not {num_collectors}")
        if restart not in RESTARTS:
            raise ConfigError(f"restart must be one of {', '.join(RESTARTS)}, not {restart!r}")
        self.env_name, self.env_cfg_overrides, self.rl_cfg = env_name, env_cfg_overrides, rl_cfg
        self.device = device or self._get_default_device()
        self.collector_device = collector_device or self.device
        self.sim_backend, self.num_envs, self.num_collectors = sim_backend, num_envs, num_collectors
        self.restart, self.stop_timeout, self.term_timeout = restart, stop_timeout, term_timeout
        self.trace_recorder: Any = None
        self.trace_thread_time = False
        self.restarts = 0  # how often collectors were started again
        self._stop_event = StopEvent()
        self._shared_resources: list[Any] = []
        self._collector_process: Any = None  # the first one
        self._collectors: list[CollectorProcess] = []
        self._restarted: dict[CollectorProcess, list[float]] = {}
        self._close_complete = False
        self._checking = threading.RLock()

    @abstractmethod
    def _get_default_device(self) -> str:
        """The device if none was given, such as "cpu"."""

    @abstractmethod
    def _build_learner(self) -> Any:
        """The learner."""

    @abstractmethod
    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        """Learn for `max_iterations` iterations, usually with `_iterate`."""

    # ---- collectors

    def _start_collector(self, target_fn: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        """Start `num_collectors` processes that run `target_fn(**kwargs)`. The function must be one of a module, because they are spawned.

        Waits of this process for what is in `_shared_resources` end with CollectorDiedError when all of them are dead.

        Raises ClosedError after close(), and ConfigError for a function that a new process cannot import, such as a lambda.
        """
        if self._close_complete:
            raise ClosedError("this runner was closed; make another one")
        for index in range(self.num_collectors):
            own = kwargs if self.num_collectors == 1 else kwargs | {"collector_index": index, "_error_label": f"collector {index}"}
            self._collectors.append(CollectorProcess(target_fn, own, alone=self.restart == "on_crash"))
        self._collector_process = self._collectors[0].process
        for resource in self._shared_resources:
            for handle in handles_of(resource):
                handle.watch(self._why_ended)

    def _processes(self) -> list[Any]:
        found = [collector.process for collector in self._collectors]
        if self._collector_process is not None and self._collector_process not in found:
            found.append(self._collector_process)  # a subclass started it
        return found

    def _why_ended(self) -> CollectorDiedError | None:
        """The error with which waits for collectors end; None while one lives, or was started again."""
        if self.restart == "on_crash":
            alive = self._check_collector_alive()
        else:
            alive = any(process.is_alive() for process in self._processes())
        return None if alive else CollectorDiedError(self._read_collector_error())

    def _check_collector_alive(self) -> bool:
        """Whether all collectors live, or are being started again. Says on stderr, once, what happened to one that does not."""
        with self._checking:  # waits of other threads ask, too, and must not start one twice
            return self._check_each()

    def _check_each(self) -> bool:
        alive = True
        for collector in self._collectors:
            if collector.process.is_alive():
                continue
            if not collector.told:
                collector.told = True
                end_group(collector.process)
                print(f"\n{collector.death()}\n", file=sys.stderr, flush=True)
            alive = self._start_again(collector) and alive
        others = [process for process in self._processes() if all(process is not collector.process for collector in self._collectors)]
        for process in others:
            if not process.is_alive():
                alive = False
                print(f"\n{death_of(process, None)}\n", file=sys.stderr, flush=True)
        return alive

    def _start_again(self, collector: CollectorProcess) -> bool:
        if self.restart != "on_crash" or collector.process.exitcode == 0 or self._stop_event.is_set():
            return False
        now = time.monotonic()
        times = [each for each in self._restarted.get(collector, []) if now - each < MOST_RESTARTS * 60]
        if len(times) >= MOST_RESTARTS:
            print(
                f"[AsyncRunner] a collector has failed {MOST_RESTARTS} times in {MOST_RESTARTS} minutes and is not started again", file=sys.stderr, flush=True
            )
            return False
        if times and collector.started < times[-1] and now - times[-1] < AGAIN_SECONDS:
            return True  # the last try failed a moment ago, and the next one would most likely fail, too
        self._restarted[collector] = [*times, now]
        was_first, errors = self._collector_process is collector.process, collector.errors
        try:
            collector.start()
        except OSError as error:  # too many files are open, for example, or there is no memory; this may pass
            print(f"[AsyncRunner] a collector could not be started again ({error}); try {len(times) + 1} of {MOST_RESTARTS}", file=sys.stderr, flush=True)
            return True
        errors.close()
        self.restarts += 1
        if was_first:
            self._collector_process = collector.process
        return True

    def _read_collector_error(self) -> str:
        """Describes how a collector ended: its traceback, or the meaning of its exit code. One that failed comes before those that it has told to stop."""
        dead = [collector for collector in self._collectors if collector.failed() or not collector.process.is_alive()]
        if dead:
            return max(dead, key=CollectorProcess.failed).death()
        return death_of(self._collector_process, None)

    # ---- learning

    def _iterate(
        self,
        max_iterations: int,
        save_interval: int,
        log_dir: str | None,
        step: Callable[[int], Mapping[str, float] | None],
        save: Callable[[Path, int], None] | None = None,
        *,
        progress: bool = True,
    ) -> int:
        """Call `step(iteration)` for 0, 1, ..., and look after everything else of a `learn`.

        Args:
            max_iterations: how often.
            save_interval: every so many iterations, and after the last one, `save(folder, iterations)` is called; 0: only after the last one.
            log_dir: folder, which is made, for checkpoints and for progress.jsonl: a line per iteration with what `step` returned. None: no log, no `save`.
            step: one iteration. The value that it returns is logged. StopIteration ends the loop early.
            progress: show it on stderr, a line per second at most.

        Returns:
            How many iterations were done.

        Raises CollectorDiedError as soon as a collector is dead.
        """
        folder = None if log_dir is None else Path(log_dir)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        begin, shown, done, saved = time.monotonic(), 0.0, 0, 0
        with open("/dev/null" if folder is None else folder / "progress.jsonl", "a") as log:
            while done < max_iterations:
                if not self._check_collector_alive():
                    raise CollectorDiedError(self._read_collector_error())
                try:
                    figures = step(done)
                except StopIteration:
                    break
                done += 1
                seconds = time.monotonic() - begin
                log.write(
                    json.dumps({"iteration": done, "seconds": round(seconds, 3)} | {name: float(value) for name, value in (figures or {}).items()}) + "\n"
                )
                if progress and (seconds - shown >= PROGRESS_SECONDS or done == max_iterations):
                    shown = seconds
                    text = "  ".join(f"{name} {float(value):.4g}" for name, value in (figures or {}).items())
                    print(f"{done}/{max_iterations}  {done / max(seconds, 1e-9):.1f} it/s  {text}", file=sys.stderr, flush=True)
                if save is not None and folder is not None and save_interval and done % save_interval == 0:
                    log.flush()
                    save(folder, done)
                    saved = done
        if save is not None and folder is not None and done and saved != done:
            save(folder, done)
        return done

    # ---- the end

    def close(self) -> None:
        """End all collectors and give back what is in `_shared_resources`. By default this takes at most 17 seconds. A second call does nothing.

        A collector that waits for room in a ring gets it, and one that waits for something else gets an error. One that goes on nevertheless gets SIGTERM, and
        then SIGKILL. An error while resources are given back is raised after all of them were.
        """
        if self._close_complete:
            return
        self._stop_event.set()
        end_all(self._processes(), self.stop_timeout, self.term_timeout, self._let_go)
        for collector in self._collectors:
            if collector.process.exitcode not in EXPECTED and not collector.told:
                collector.told = True
                print(f"\n[AsyncRunner] {collector.death()}\n", file=sys.stderr, flush=True)
        failure: Exception | None = None
        for resource in self._shared_resources:
            try:
                if hasattr(resource, "cleanup"):
                    resource.cleanup()
                elif hasattr(resource, "close"):
                    resource.close()
            except Exception as error:
                failure = failure or error
        for collector in self._collectors:
            collector.errors.close()
        self._close_complete = True
        if failure is not None:
            raise failure

    def _let_go(self, seconds: float) -> None:
        """End the waits of collectors, which look at the stop event only afterwards: first make room in the rings, then give the memory up."""
        for handle in (handle for resource in self._shared_resources for handle in handles_of(resource)):
            if seconds > LEAVING_SECONDS:
                handle.cleanup()
            elif isinstance(handle, Ring):
                while handle.available():
                    try:
                        handle.take(timeout=0).release()
                    except EchoTimeoutError:
                        break  # a collector has taken it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:
            pass  # an object that is being collected has nobody to tell
