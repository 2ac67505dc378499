"""Calls of actors that never hold up the caller: an actor that is dead, or being started again, answers later or not at all."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import RayError

__all__ = ["NAMESPACE", "Call", "name_of"]

NAMESPACE = "echo"


def name_of(cluster: str, kind: str, number: int) -> str:
    """The name of an actor in `NAMESPACE`."""
    return f"{cluster}/{kind}-{number}"


class Call:
    """One method of one actor, called again and again; at most one call is under way.

    Attributes:
        answer: the newest; None before the first.
        error: why the last call failed; "" if it did not.
    """

    def __init__(self, method: Any) -> None:
        self._method = method
        self._under_way: Any = None
        self._since = 0.0
        self.answer: Any = None
        self.error = ""

    def poll(self, *arguments: Any) -> bool:
        """Take the answer if there is one, and call again. Returns whether there was a new answer."""
        new = False
        if self._under_way is not None and ray.wait([self._under_way], timeout=0)[0]:
            try:
                self.answer, self.error, new = ray.get(self._under_way), "", True
            except RayError as error:
                self.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            self._under_way = None
        if self._under_way is None:
            try:
                self._under_way, self._since = self._method.remote(*arguments), time.monotonic()
            except RayError as error:  # an actor that is dead for good
                self.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return new

    @property
    def waits(self) -> float:
        """For how many seconds the call under way has had no answer."""
        return 0.0 if self._under_way is None else time.monotonic() - self._since
