"""What cells, rings and rows have in common: a handle on shared memory that can be closed, pickled and opened again by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from echo_core.base.errors import ClosedError

from .. import _native
from .memory import Memory

__all__ = ["Handle"]


class Handle(ABC):
    """A handle on shared memory. It may be used by several threads, and pickled into other processes.

    Attributes:
        name: by which other processes of the same user attach, as long as the process that made the memory lives and has not called `cleanup()`.
    """

    _live: _native.Cell | _native.Ring | _native.Rows | None

    def __init__(self, memory: Memory, native: _native.Cell | _native.Ring | _native.Rows) -> None:
        self._memory = memory
        self._live = native

    @property
    def name(self) -> str:
        return self._memory.name

    @property
    def closed(self) -> bool:
        return self._live is None

    def close(self) -> None:
        """Stop using the memory in this process. Every later call, and every wait that is going on, raises ClosedError.

        Arrays that lie in the memory stay readable. If this object made the memory, others can still attach by its name; `cleanup()` ends that.
        """
        native, self._live = self._live, None
        if native is not None:
            native.close()
            self._forget()
        self._memory.close()

    def cleanup(self) -> None:
        """Close, and give up the name: nobody can attach any more. Processes that are attached keep the memory until they close it.

        This also happens when the object that made the memory is collected.
        """
        self.close()
        self._memory.release()

    def _forget(self) -> None:
        """Drop what refers to the mapping."""
        self._memory.mapping = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cleanup()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{' closed' if self.closed else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._live is None:
            raise closed(self)
        return _unpickled, (type(self), self._memory, self._state())

    def _state(self) -> dict[str, Any]:
        """The state that a copy in another process is made from, besides the memory."""
        return {}

    @abstractmethod
    def _adopt(self, memory: Memory, state: dict[str, Any]) -> None:
        """Become a copy."""


def closed(handle: Handle) -> ClosedError:
    return ClosedError(f"{handle.name} ({type(handle).__name__}) was closed here; open it again by its name, or keep it open as long as it is used")


def _unpickled(cls: type[Handle], memory: Memory, state: dict[str, Any]) -> Handle:
    handle = cls.__new__(cls)
    handle._adopt(memory, state)
    return handle
