"""What cells, rings and rows have in common: a handle on shared memory that can be closed, pickled and opened again by name."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self
from weakref import WeakValueDictionary

from echo_core.base.errors import ClosedError

from .. import _native
from .memory import Memory

__all__ = ["Handle", "handles_of"]


class Handle(ABC):
    """A handle on shared memory. It may be used by several threads, and pickled into other processes.

    Attributes:
        name: by which other processes of the same user attach, as long as the process that made the memory lives and has not called `cleanup()`.
    """

    _live: _native.NativeCell | _native.NativeRing | _native.NativeRows | None

    def __init__(self, memory: Memory, native: _native.NativeCell | _native.NativeRing | _native.NativeRows) -> None:
        self._memory = memory
        self._live = native
        native.name = memory.name
        memory.mapping.enter(memory.owner or memory.handed, memory.handed)
        _open[id(self)] = self

    @property
    def name(self) -> str:
        return self._memory.name

    @property
    def closed(self) -> bool:
        return self._live is None

    def watch(self, ended: Callable[[], BaseException | None] | None) -> None:
        """From now on, every wait of this object in this process asks `ended()` 20 times a second. If it returns an error, the wait raises it, but only
        after what came before has been found. None: as without this call."""
        self._use().watch = None if ended is None else _here(ended)

    def ended(self) -> BaseException | None:
        """The error with which a wait for what others write would end now, as nobody is left who could; None if somebody is."""
        return self._use().gone()

    @abstractmethod
    def _use(self) -> _native.NativeCell | _native.NativeRing | _native.NativeRows:
        """The compiled object. Raises ClosedError after close()."""

    def close(self) -> None:
        """Stop using the memory in this process. Every later call, and every wait that is going on, raises ClosedError.

        Arrays that lie in the memory stay readable. If this object made the memory, others can still attach by its name; `cleanup()` ends that.
        """
        self._leave(False)
        self._memory.close()

    def _leave(self, last: bool) -> None:
        native, self._live = self._live, None
        if native is not None:
            native.close()
            native.watch = None
            _open.pop(id(self), None)
            if all(other.name != self.name for other in _opened()):
                native.mapping.leave(last)
            self._forget()

    def cleanup(self) -> None:
        """Close, and give up the name: nobody can attach any more. Processes that are attached keep the memory until they close it.

        This also happens when the object that made the memory is collected.
        """
        self._leave(True)
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


_open: WeakValueDictionary[int, Handle] = WeakValueDictionary()  # of this process


def _opened() -> list[Handle]:
    return [handle for reference in _open.valuerefs() if (handle := reference()) is not None and not handle.closed]


def _enter_forked_child() -> None:
    for handle in _opened():
        handle._memory.mapping.enter()


os.register_at_fork(after_in_child=_enter_forked_child)


def _here(ended: Callable[[], BaseException | None]) -> Callable[[], BaseException | None]:
    """Without effect in a forked child, because a process cannot ask about the children of its parent."""
    pid = os.getpid()
    return lambda: ended() if os.getpid() == pid else None


def handles_of(resource: object) -> list[Handle]:
    """The handles that are open in an object, such as a `SharedWeightSync`, or the object itself."""
    found = [resource, *getattr(resource, "__dict__", {}).values()]
    return [each for each in found if isinstance(each, Handle) and not each.closed]


def closed(handle: Handle) -> ClosedError:
    return ClosedError(f"{handle.name} ({type(handle).__name__}) was closed here; open it again by its name, or keep it open as long as it is used")


def _unpickled(cls: type[Handle], memory: Memory, state: dict[str, Any]) -> Handle:
    handle = cls.__new__(cls)
    handle._adopt(memory, state)
    return handle
