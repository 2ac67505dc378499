"""What a worker has taken over and the learner has not acknowledged yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..errors import ProtocolError
from ..wire import Buffer, Kind, max_count, pack_header

__all__ = ["Entry", "Window"]

COALESCE_BYTES = 256 << 10  # small entries travel together, up to about so many bytes a frame


class Entry(NamedTuple):
    """Samples that were taken over together: numbers first .. last, as one payload."""

    first: int
    count: int  # type: ignore[assignment]  # of samples; tuple.count is not missed
    data: memoryview

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class Window:
    """Unacknowledged samples in order, and how far they have been sent. The owner's lock is held
    for every call; what `next_entries` returned may be encoded without it.

    `acknowledged` counts the samples that are committed for good, `taken` all of them.
    """

    def __init__(self, leaf_bytes: Sequence[int], max_bytes: int, max_count: int) -> None:
        self.acknowledged = 0
        self.taken = 0
        self._leaf_bytes = tuple(leaf_bytes)
        self._sample_bytes = sum(leaf_bytes)
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._bytes = 0
        self._newest_sent = 0
        self._sent: deque[Entry] = deque()
        self._unsent: deque[Entry] = deque()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def under_way(self) -> bool:
        """Some are sent and not acknowledged."""
        return bool(self._sent)

    def has_room(self, count: int) -> bool:
        """True if `count` more samples fit; any number fits into an empty window."""
        under_way = self.taken - self.acknowledged
        return not under_way or (
            under_way + count <= self._max_count
            and self._bytes + count * self._sample_bytes <= self._max_bytes
        )

    def add(self, count: int, data: bytes) -> None:
        """Number and keep `count` samples; `data` holds each leaf's samples in turn."""
        for n, payload in self._frame_sized(count, memoryview(data)):
            self._unsent.append(Entry(self.taken + 1, n, payload))
            self.taken += n
            self._bytes += len(payload)

    def _frame_sized(self, count: int, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Cut a batch that is larger than a frame may be."""
        most = max_count(self._sample_bytes)
        if count <= most:
            yield count, data
            return
        for start in range(0, count, most):
            n = min(most, count - start)
            rows, base = [], 0
            for size in self._leaf_bytes:
                rows.append(data[base + start * size : base + (start + n) * size])
                base += count * size
            yield n, memoryview(b"".join(rows))

    def next_entries(self) -> list[Entry]:
        """Unsent entries for one frame, from now on counted as sent; empty when there are none."""
        if not self._unsent:
            return []
        entries = [self._unsent.popleft()]
        size, count = len(entries[0].data), entries[0].count
        most = max_count(self._sample_bytes)
        while self._unsent:
            size, count = size + len(self._unsent[0].data), count + self._unsent[0].count
            if size > COALESCE_BYTES or count > most:
                break
            entries.append(self._unsent.popleft())
        self._sent.extend(entries)
        self._newest_sent = max(self._newest_sent, entries[-1].last)
        return entries

    def encode(self, entries: list[Entry]) -> Iterator[Buffer]:
        """The DATA frame of consecutive entries, as buffers to send in turn."""
        count = entries[-1].last - entries[0].first + 1
        length = count * self._sample_bytes
        header = pack_header(Kind.DATA, count=count, seq=entries[0].first, length=length)
        if len(entries) == 1:
            yield header
            yield entries[0].data
            return
        pieces: list[Buffer] = [header]
        starts = [0] * len(entries)
        for size in self._leaf_bytes:
            for i, entry in enumerate(entries):
                stop = starts[i] + entry.count * size
                pieces.append(entry.data[starts[i] : stop])
                starts[i] = stop
        yield b"".join(pieces)

    def acknowledge(self, number: int) -> None:
        """The first `number` samples of the session are committed."""
        if not self.acknowledged <= number <= self._newest_sent:
            raise ProtocolError(
                f"the learner acknowledged {number} samples, after {self.acknowledged} and with"
                f" {self._newest_sent} sent"
            )
        self._release(self._sent, number)

    def resume(self, number: int) -> None:
        """A new connection: `number` samples are committed, the rest is to be sent again."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        if number > self.taken and not self._unsent:
            # A session of this id that went on before: its numbers continue.
            self.taken = self.acknowledged = self._newest_sent = number
        if not self.acknowledged <= number <= self._newest_sent:
            raise ProtocolError(
                f"the learner has {number} samples of this client, which sent {self._newest_sent}"
                f" and knows {self.acknowledged} committed; is its client_id used twice?"
            )
        self._release(self._unsent, number)

    def _release(self, entries: deque[Entry], number: int) -> None:
        while entries and entries[0].last <= number:
            self._bytes -= len(entries.popleft().data)
        self.acknowledged = number
