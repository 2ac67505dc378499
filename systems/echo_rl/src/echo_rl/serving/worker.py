"""A thread that steps an engine for any number of threads that ask and wait."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from torch import Tensor

from echo_rl.engine import Engine, Model, Request
from echo_rl.engine.batches import BatchEngine

T = TypeVar("T")

IDLE = 1.0
"""Seconds after which a thread without work ends."""


class Busy(Exception):
    """The worker has as many requests as it accepts. ``retry_after`` says after how many seconds to ask again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Stream:
    """One request, seen from the thread that waits for it."""

    def __init__(self, worker: EngineWorker, request: Request) -> None:
        self._worker, self.request = worker, request

    def wait(self, given: int, timeout: float) -> bool:
        """Wait until more than ``given`` tokens were made or the request ended. Return False after ``timeout`` seconds without either.

        Raise the engine's own error if a step failed. A worker that is closed ends its requests with ``"abort"``.
        """
        with self._worker.changed:
            done = self._worker.changed.wait_for(lambda: len(self.request.output) > given or self.request.finish is not None, timeout)
            if self.request.finish == "abort" and self._worker.error is not None:
                raise self._worker.error
            return done

    def tokens(self, timeout: float = 60.0) -> Iterator[int]:
        """Yield the tokens as they are made. Raise TimeoutError if none comes for ``timeout`` seconds; the request is then aborted."""
        given = 0
        try:
            while True:
                if not self.wait(given, timeout):
                    raise TimeoutError(f"no token was made for {timeout} s ({self._worker.describe()})")
                ended = self.request.finish is not None
                for token in self.request.output[given:]:
                    given += 1
                    yield token
                if ended:
                    return
        finally:
            self.cancel()

    def result(self, timeout: float = 60.0) -> Request:
        """Wait for the end and return the request. Raise TimeoutError after ``timeout`` seconds; the request goes on."""
        end = time.monotonic() + timeout
        while self.request.finish is None:
            if not self.wait(len(self.request.output), max(0.0, end - time.monotonic())):
                raise TimeoutError(f"the request did not end within {timeout} s ({self._worker.describe()}); wait again, or cancel it")
        self.wait(-1, 0)
        return self.request

    def cancel(self) -> bool:
        """End the request between tokens. Return False if it had ended."""
        return self._worker.cancel(self.request)


class EngineWorker:
    """Steps one engine while it has requests. Use it as a context manager, or call ``close``.

    Only the worker's thread uses the engine. It carries out the requests of other threads between two steps. The thread begins with the first
    request, and ends when there has been nothing to do for a second.

    Args:
        engine: The engine. Nobody else may use it while the worker runs.
        most: The largest number of requests at the same time. ``submit`` refuses more.
        timeout: For how many seconds a call waits for the end of the step that runs.
        after_step: Called in the worker's thread after each step.

    Attributes:
        changed: Notified after each step.
        error: The exception that a step has raised. The worker ends after it.
    """

    def __init__(self, engine: Engine | BatchEngine, most: int = 1024, *, timeout: float = 60.0, after_step: Callable[[], None] | None = None) -> None:
        if most < 1 or not timeout > 0:
            raise ValueError(f"most={most} must be at least 1 and timeout={timeout} greater than 0")
        self.engine, self.most, self.timeout = engine, most, timeout
        self.changed = threading.Condition()
        self.error: Exception | None = None
        self._after_step = after_step
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> EngineWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, prompts: Sequence[Sequence[int]], max_new: int, *, watches: Sequence[Callable[[int], bool]] = (), seed: int | None = None, **options: Any
    ) -> list[Stream]:
        """Queue all prompts, or none of them, and return their streams.

        Args:
            prompts: Token sequences.
            max_new: The largest number of new tokens for each prompt.
            watches: A ``watch`` for each prompt, or none.
            seed: The seed of the first prompt. Each further prompt has the seed of the one before plus 1.
            **options: The other options of ``Engine.submit``.

        Raises:
            Busy: If fewer than ``len(prompts)`` further requests are accepted now.
            ValueError: As ``Engine.submit`` does; none of the prompts is then queued.
            RuntimeError: If the worker is closed.
            TimeoutError: If the step that runs does not end within ``timeout`` seconds; nothing is queued.
        """
        engine = self.engine
        assert isinstance(engine, Engine)

        def queue() -> list[Request]:
            if engine.live + len(prompts) > self.most:
                raise Busy(f"{engine.live} requests live and {len(prompts)} more were asked for; at most {self.most} may", engine.scheduler.mean_wait)
            queued: list[Request] = []
            try:
                for i, prompt in enumerate(prompts):
                    own = None if seed is None else seed + i
                    queued.append(engine.submit(prompt, max_new, seed=own, watch=watches[i] if watches else None, **options))
            except BaseException:
                for request in queued:
                    engine.abort(request)
                raise
            return queued

        return [Stream(self, request) for request in self._between_steps(queue)]

    def cancel(self, request: Request) -> bool:
        """End a request between tokens. Return False if it had ended."""
        if request.finish is not None:
            return False
        try:
            return self._between_steps(lambda: self.engine.abort(request))
        except RuntimeError:
            return False  # The worker is closed, which aborts every request.

    def update_weights(self, params: Model | Mapping[str, Tensor], version: int) -> None:
        """Go on with other weights between two tokens; see ``Engine.update_weights``."""
        self._between_steps(lambda: self.engine.update_weights(params, version))  # type: ignore[arg-type]

    def pause(self) -> None:
        """Make no further token until ``resume``. Requests keep their state and new ones are queued."""
        self._between_steps(self.engine.pause)

    def resume(self) -> None:
        """Undo ``pause``."""
        self._between_steps(self.engine.resume)

    def stats(self) -> dict[str, float]:
        """Return the engine's counters."""
        return self.engine.stats()

    def describe(self) -> str:
        """Say in a few words what the engine is doing, for messages."""
        stats = self.stats()
        state = "paused" if self.engine.paused else "running"
        return f"the engine is {state}: {stats['running']:.0f} requests run and {stats['waiting']:.0f} wait"

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """Let the worker's thread carry out ``call`` between two steps. Raise RuntimeError if the worker is closed."""
        future: Future[T] = Future()
        with self.changed:
            if self._closed:
                raise RuntimeError("the engine's worker is closed") from self.error
            self._calls.append((call, future))
            self.changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="echo-rl-engine", daemon=True)
                self._thread.start()
                # A program that ends during a step would otherwise be aborted: the interpreter's end cannot stop a thread that is in torch.
                atexit.register(self.close)
        return future

    def close(self, timeout: float = 30.0) -> None:
        """Abort every request and end the thread. Raise TimeoutError if a step lasts longer than ``timeout`` seconds."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
            thread = self._thread
            if thread is None:
                for request in self.engine.requests():  # They were paused when the thread ended.
                    self.engine.abort(request)
                return
        thread.join(timeout)
        if thread.is_alive():
            raise TimeoutError(f"the engine's step did not end within {timeout} s")

    def _between_steps(self, call: Callable[[], T]) -> T:
        future = self.ask(call)
        try:
            return future.result(self.timeout)
        except TimeoutError:
            if not future.cancel():
                return future.result(self.timeout)  # It has just begun.
            raise TimeoutError(f"the engine's step did not end within {self.timeout} s; nothing was changed") from None

    def _run(self) -> None:
        while True:
            with self.changed:
                if not self.changed.wait_for(lambda: self._closed or self._calls or (not self.engine.paused and self.engine.live), IDLE):
                    self._thread_ends()
                    return
                calls = list(self._calls)
                self._calls.clear()
            for call, future in calls:
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            try:
                if not self._closed:
                    self.engine.step()
            except Exception as error:
                # Those who wait must learn of it; otherwise each of them would only time out.
                self.error = error
                with self.changed:
                    self._closed = True
            if self._closed:
                for request in self.engine.requests():
                    self.engine.abort(request)
            with self.changed:
                self.changed.notify_all()
                ended = self._closed and not self._calls
                if ended:
                    self._thread_ends()
            if self._after_step is not None:
                self._after_step()
            if ended:
                return

    def _thread_ends(self) -> None:
        """The caller holds ``changed``."""
        self._thread = None
        atexit.unregister(self.close)
