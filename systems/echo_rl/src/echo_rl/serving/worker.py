"""A thread that steps an engine for any number of threads that ask and wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from torch import Tensor

from echo_rl.engine import Engine, Model, Request

T = TypeVar("T")


class Busy(Exception):
    """As many requests live as the worker accepts. ``retry_after`` is when to ask again, in seconds."""

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

    Only the worker's thread touches the engine; what other threads ask for is done between two steps.

    Args:
        engine: The engine; nobody else may use it meanwhile.
        most: So many requests live at once; ``submit`` refuses more.

    Attributes:
        changed: Notified after each step.
        error: What a step raised, after which the worker has ended.
    """

    def __init__(self, engine: Engine, most: int = 1024) -> None:
        if most < 1:
            raise ValueError(f"most={most} must be at least 1")
        self.engine, self.most = engine, most
        self.changed = threading.Condition()
        self.error: Exception | None = None
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="echo-rl-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> EngineWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, prompts: Sequence[Sequence[int]], max_new: int, *, watches: Sequence[Callable[[int], bool]] = (), seed: int | None = None, **options: Any
    ) -> list[Stream]:
        """Queue prompts, all or none, and return their streams.

        Args:
            prompts: Token sequences.
            max_new: At most so many tokens are made for each.
            watches: A ``watch`` for each prompt, or none.
            seed: Of the first prompt; it is raised by one for each further one.
            **options: The others of ``Engine.submit``.

        Raises:
            Busy: If fewer than ``len(prompts)`` further requests are accepted now.
            ValueError: As ``Engine.submit`` does; none of the prompts is then queued.
            RuntimeError: If the worker is closed.
        """

        def queue() -> list[Request]:
            live = self._live()
            if len(live) + len(prompts) > self.most:
                raise Busy(f"{len(live)} requests live and {len(prompts)} more were asked for; at most {self.most} may", self.engine.scheduler.mean_wait)
            queued: list[Request] = []
            try:
                for i, prompt in enumerate(prompts):
                    own = None if seed is None else seed + i
                    queued.append(self.engine.submit(prompt, max_new, seed=own, watch=watches[i] if watches else None, **options))
            except BaseException:
                for request in queued:
                    self.engine.abort(request)
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
        self._between_steps(lambda: self.engine.update_weights(params, version))

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

    def close(self, timeout: float = 30.0) -> None:
        """Abort every request and end the thread. Raise TimeoutError if a step lasts longer than ``timeout`` seconds."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine's step did not end within {timeout} s")

    def _between_steps(self, call: Callable[[], T]) -> T:
        future: Future[T] = Future()
        with self.changed:
            if self._closed:
                raise RuntimeError("the engine's worker is closed") from self.error
            self._calls.append((call, future))
            self.changed.notify_all()
        return future.result()

    def _live(self) -> list[Request]:
        return [*self.engine.waiting, *self.engine.filling, *self.engine.decoding]

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._closed or self._calls or (not self.engine.paused and self._live()))
                calls = list(self._calls)
                self._calls.clear()
            for call, future in calls:
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
                for request in self._live():
                    self.engine.abort(request)
            with self.changed:
                self.changed.notify_all()
                if self._closed and not self._calls:
                    return
