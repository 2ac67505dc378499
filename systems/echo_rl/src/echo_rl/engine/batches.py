"""The engine's interface for a model that is any callable: whole states go in, and whole answers come out."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from echo_rl.engine.request import Request
from echo_rl.engine.scheduler import Scheduler
from echo_rl.engine.waiting import Waiting


class BatchEngine:
    """Answer states with a callable from a batch of states to a batch of answers. ``EngineWorker`` steps it like an ``Engine``.

    Each step takes up to ``slots`` waiting states of one shape, stacked along a new first axis.
    """

    def __init__(self, call: Callable[[Tensor], Any], slots: int, scheduler: str = "value", device: torch.device | None = None) -> None:
        self.call = call.to(device) if isinstance(call, torch.nn.Module) else call
        self.slots, self.device = slots, device or torch.device("cpu")
        self.scheduler = Scheduler(scheduler, slots=slots)
        self.waiting = Waiting()
        self.answers: WeakKeyDictionary[Request, Any] = WeakKeyDictionary()
        """The answers to requests that ended, for as long as somebody keeps the request."""
        self.errors: WeakKeyDictionary[Request, Exception] = WeakKeyDictionary()
        """What the callable raised instead of an answer."""
        self.paused, self.version = False, 0
        self._states: dict[Request, Tensor] = {}
        self._count = 0

    @property
    def live(self) -> int:
        """How many states wait."""
        return len(self.waiting)

    def requests(self) -> list[Request]:
        """Return the requests that wait."""
        return list(self.waiting)

    def submit(self, state: Tensor, value: float = 1.0) -> Request:
        """Queue a state. Raise ValueError if the value is not finite."""
        if not math.isfinite(value):
            raise ValueError(f"value={value} must be finite")
        length = len(state) if state.ndim else 1
        request = Request(self._count, (0,) * length, 1, 1.0, 1.0, frozenset(), value, time.monotonic(), random.Random(0))
        self._count += 1
        self._states[request] = state
        self.waiting.add(request)
        return request

    def step(self) -> list[Request]:
        """Answer one batch and return its requests."""
        if self.paused or not self.waiting:
            return []
        now = time.monotonic()
        ordered = [self.waiting.requests[row] for row in self.scheduler.order(self.waiting, now, len(self.waiting))]
        shape = self._states[ordered[0]].shape
        chosen = [r for r in ordered if self._states[r].shape == shape][: self.slots]
        try:
            with torch.inference_mode():
                answers = self.call(torch.stack([self._states[r] for r in chosen]).to(self.device))
            found = [tuple(a[i] for a in answers) if isinstance(answers, tuple) else answers[i] for i in range(len(chosen))]
        except Exception as error:
            # Those who asked for this batch learn of it; the others go on.
            for request in chosen:
                self.errors[request] = error
                self._remove(request, "abort")
            return chosen
        for request, answer in zip(chosen, found, strict=True):
            request.waited = now - request.arrived
            self.scheduler.record(request.waited)
            self.answers[request] = answer
            request.versions.append(self.version)
            self._remove(request, "length")
        return chosen

    def abort(self, request: Request) -> bool:
        """End a request that waits. Return False if it had ended."""
        if request.finish is not None:
            return False
        self._remove(request, "abort")
        return True

    def pause(self) -> None:
        """Let ``step`` do nothing until ``resume``."""
        self.paused = True

    def resume(self) -> None:
        """Undo ``pause``."""
        self.paused = False

    def update_weights(self, params: Mapping[str, Tensor], version: int) -> None:
        """Load a module's state between two batches.

        Raise ValueError if the callable is no module, if the state has other names or shapes, or if the version is not newer. Nothing changes then.
        """
        if not isinstance(self.call, torch.nn.Module) or not isinstance(params, Mapping):
            raise ValueError("a plain callable has no weights that could be updated; give a Model or a torch module")
        if version <= self.version:
            raise ValueError(f"version {version} is not newer than {self.version}")
        own = {name: tuple(value.shape) for name, value in self.call.state_dict().items()}
        if wrong := sorted(own.keys() ^ params.keys()) or [name for name in own if tuple(params[name].shape) != own[name]]:
            raise ValueError(f"the state does not fit the module: {wrong[0]!r} and {len(wrong) - 1} others are missing, unknown or of another shape")
        self.call.load_state_dict(params)
        self.version = version

    def stats(self) -> dict[str, float]:
        """Return how many states wait and the mean wait in seconds."""
        return {"waiting": len(self.waiting), "running": 0, "mean_wait": self.scheduler.mean_wait}

    def _remove(self, request: Request, finish: str) -> None:
        self.waiting.remove(request)
        del self._states[request]
        request.finish = finish
