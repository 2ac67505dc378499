"""The individuals of an epoch that nobody evaluates yet, as ranges without gaps; the range that came last is given first."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Ranges"]


class Ranges:
    """A stack of ranges. They never overlap as long as only ranges that were taken are given back."""

    def __init__(self, *slices: slice) -> None:
        self._stack: list[tuple[int, int]] = []
        self.give_back(slices)

    def __len__(self) -> int:
        """The number of individuals."""
        return sum(stop - start for start, stop in self._stack)

    def __bool__(self) -> bool:
        return bool(self._stack)

    def take(self, individuals: int, most: int = 0) -> list[slice]:
        """Remove up to `individuals` from the top of the stack, in at most `most` slices. If `most` is 0, there may be any number of slices."""
        taken: list[slice] = []
        while individuals > 0 and self._stack and not (most and len(taken) == most):
            start, stop = self._stack.pop()
            if stop - start > individuals:
                self._stack.append((start + individuals, stop))
                stop = start + individuals
            taken.append(slice(start, stop))
            individuals -= stop - start
        return taken

    def give_back(self, slices: Iterable[slice]) -> None:
        """Put slices on the stack; the first of them will be taken first."""
        self._stack += [(part.start, part.stop) for part in reversed(list(slices)) if part.stop > part.start]
