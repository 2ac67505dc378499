"""Samples that a worker has taken over and that the learner has not acknowledged yet.

echo_tcp and echo_rdma have native windows of their own, because their memory has another lifetime:
see docs/design/decisions/0016-three-windows.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from echo_core.base.errors import ProtocolError
from echo_core.wire.protocol import LABEL_BYTES, LABELS, Buffer, Kind, max_count, pack_header

from ..gather import SMALL, Chunk, Gatherer
from .acknowledgement import AcknowledgementRequests

if TYPE_CHECKING:
    from echo_core.spec.pytree.flattener import Flattener

__all__ = ["Entry", "SampleWindow", "Window"]

PIECE_BYTES = 4 << 10  # a channel may make a system call for each piece, which smaller ones are not worth
COALESCE_BYTES = 256 << 10  # small entries travel together, up to about so many bytes a frame


class Entry(NamedTuple):
    """Samples that were taken over together: numbers first .. last, as one payload. If they are labelled, their labels are its last column."""

    first: int
    count: int  # type: ignore[assignment]  # of samples; tuple.count is not missed
    data: memoryview | Chunk
    labelled: bool

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def payload(self) -> memoryview:
        """The bytes of the entry, leaf after leaf, with all its samples in each, and then their labels if they have some."""
        return self.data if isinstance(self.data, memoryview) else memoryview(self.data.payload())

    def pieces(self) -> list[memoryview]:
        """The same bytes as one piece or several, without a copy."""
        return [self.data] if isinstance(self.data, memoryview) else self.data.columns()


class SampleWindow(Protocol):
    """The methods of a window that an uplink calls. It holds the gate's lock for all of them but `take`, which any thread calls without the lock.

    Attributes:
        small: whether `take` takes samples. If it does not, they are given to `add`.
        taken: how many samples were taken over.
        acknowledged: how many of these the learner has acknowledged.
    """

    @property
    def small(self) -> bool: ...
    @property
    def taken(self) -> int: ...
    @property
    def acknowledged(self) -> int: ...

    def take(self, sample: object, label: bytes | None = None, /) -> int:
        """Take one sample over, with its labels. Raises SpecError if it does not match the spec.

        Returns:
            1 if it was taken; 2 if it was taken and the thread that writes must be woken; 0 if there is no room, or if `add` has to take it.
        """

    def add(self, count: int, data: bytes, labels: bytes | None = None) -> None:
        """Take `count` samples over, with their labels. `data` has the bytes leaf after leaf, with all samples in each. The caller has waited
        for `has_room`."""

    def has_room(self, count: int) -> bool:
        """Whether `count` more samples fit; any number fits into an empty window."""

    def lent(self) -> str:
        """A note about memory that is lent, for the message of a wait for room; "" if nothing is lent."""

    def next_frame(self) -> tuple[Iterable[Buffer], int] | None:
        """The next frame to write on the channel, and the number of its last sample. None if every frame was written, or if samples do not
        travel on the channel.

        The buffers may be a generator, which runs without the lock."""

    def acknowledge(self, number: int) -> None:
        """Free the first `number` samples of the session, which are committed. Raises ProtocolError if they were never sent."""

    def resume(self, number: int) -> None:
        """Begin with a new connection: `number` samples are committed, and the others must be sent again. Raises ProtocolError as `acknowledge` does."""

    def leftovers(self) -> Sequence[tuple[int, Buffer, bool]]:
        """After `stop`: the samples that are not acknowledged, as `Connection.leftovers` returns them."""

    def stop(self) -> None:
        """Take no more samples. This is also called in a forked child, where a lock may be held for ever, so it must take none."""


class Window:
    """Unacknowledged samples in order, and how far they have been sent.

    `gatherer` takes small samples one by one, from any thread and without a lock, and lends rows. The owner's lock
    is held for every call here; what `encode` returned may be iterated over without it.

    A transport may extend it (`Uplink.make_window`), with other figures and its own `encode`.

    Attributes:
        gathered_bytes: the largest size in bytes of samples that the gatherer takes.
        head_bytes: how many bytes the gatherer keeps free in front of its samples; see `Chunk.framed`.
        parts: into how many parts the window is divided. The last frame of each part asks for an acknowledgement.
        acknowledged: how many samples the learner has acknowledged.
        sample_bytes: the size of one sample in bytes.
    """

    gathered_bytes: ClassVar[int] = SMALL
    head_bytes: ClassVar[int] = 0
    parts: ClassVar[int] = 4

    def __init__(
        self, flattener: Flattener, max_bytes: int, most: int, coalesce_bytes: int = COALESCE_BYTES
    ) -> None:
        self.acknowledged = 0
        self._leaf_bytes = tuple(spec.nbytes for spec in flattener.specs)
        self.sample_bytes = sum(self._leaf_bytes)
        self._coalesce_bytes = coalesce_bytes
        self._most = min(most, max_bytes // max(1, self.sample_bytes))  # samples under way
        self._numbered = 0  # of those taken, not counting what the gatherer still has
        self._newest_sent = 0
        self._requests = AcknowledgementRequests(self._most // self.parts)
        self._sent: deque[Entry] = deque()
        self._unsent: deque[Entry] = deque()
        self._over = False
        self.small = 0 < self.sample_bytes <= self.gathered_bytes  # whether the gatherer takes them
        largest = min(max_count(self.sample_bytes), max(1, self._most))
        self.gatherer = Gatherer(flattener, coalesce_bytes, largest, self.head_bytes)
        self.take = self.gatherer.take  # bound once: a method in between would take as long as a small sample
        self._permit()

    @property
    def taken(self) -> int:
        return self.gatherer.taken

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def under_way(self) -> bool:
        """Some are sent and not acknowledged."""
        return bool(self._sent)

    @property
    def most(self) -> int:
        """How many samples may be under way."""
        return max(1, self._most)

    def has_room(self, count: int, apart: int = 0) -> bool:
        """True if `count` more samples fit; any number fits into an empty window. `apart` are under
        way as well, and not in here."""
        under_way = self.taken - self.acknowledged + self.gatherer.held + apart
        return not under_way or under_way + count <= self._most

    def lent(self) -> str:
        """A word on rows that are reserved, for the error of a call that waits for room."""
        held = self.gatherer.held
        return f" (reserved and not committed: {held})" if held else ""

    def stop(self) -> None:
        """The gatherer takes no more."""
        self._over = True
        self._permit()

    def _permit(self) -> None:
        self.gatherer.limit = (
            self.acknowledged + max(1, self._most) if self.small and not self._over else -1
        )

    def add(self, count: int, data: bytes, labels: bytes | None = None) -> None:
        """Number and keep `count` samples; `data` holds each leaf's samples in turn."""
        self._number_gathered()
        for n, payload in self._frame_sized(count, memoryview(data if labels is None else data + labels), labels is not None):
            self._append(n, payload, labels is not None)
            self.gatherer.note(n)

    def put_first(self, count: int, data: Buffer, labelled: bool) -> None:
        """As `add`, before everything that waits: samples that were given to somebody else, who
        gave them back. `data` ends with their labels if they are `labelled`. Nothing may be under way."""
        waiting, self._unsent, self._numbered = self._unsent, deque(), self.acknowledged
        for n, payload in self._frame_sized(count, memoryview(data), labelled):
            self._append(n, payload, labelled)
        for entry in waiting:
            done = max(0, self.acknowledged + 1 - entry.first)
            self._append(entry.count - done, self._rows_from(entry, done) if done else entry.data, entry.labelled)
        self.gatherer.note(count)

    def _number_gathered(self) -> None:
        for chunk in self.gatherer.settle():
            self._append(chunk.count, chunk, chunk.labelled)

    def _append(self, count: int, data: memoryview | Chunk, labelled: bool) -> None:
        self._unsent.append(Entry(self._numbered + 1, count, data, labelled))
        self._numbered += count

    def _columns(self, labelled: bool) -> tuple[int, ...]:
        """Bytes of one sample in each column of a payload."""
        return (*self._leaf_bytes, LABEL_BYTES) if labelled else self._leaf_bytes

    def _frame_sized(self, count: int, data: memoryview, labelled: bool) -> Iterator[tuple[int, memoryview]]:
        """Cut a batch that is larger than a frame may be."""
        most = max_count(self.sample_bytes)
        if count <= most:
            yield count, data
            return
        for start in range(0, count, most):
            n = min(most, count - start)
            yield n, self._rows(data, count, start, n, labelled)

    def _rows_from(self, entry: Entry, row: int) -> memoryview:
        """The samples of an entry from number `row` on, counted from 0."""
        return self._rows(entry.payload(), entry.count, row, entry.count - row, entry.labelled)

    def _rows(self, data: memoryview, count: int, start: int, n: int, labelled: bool) -> memoryview:
        """Samples number `start` to `start + n - 1` of the `count` in `data`."""
        rows, base = [], 0
        for size in self._columns(labelled):
            rows.append(data[base + start * size : base + (start + n) * size])
            base += count * size
        return memoryview(b"".join(rows))

    def next_entries(self) -> list[Entry]:
        """Unsent entries for one frame, all with labels or all without, counted as sent from now on. If there are no entries, the list is empty
        and the gatherer is told that somebody waits."""
        self.gatherer.idle = True  # before looking, so that what is taken meanwhile is not missed
        if not self._unsent and (chunk := self.gatherer.collect()) is not None:
            self._append(chunk.count, chunk, chunk.labelled)
        if not self._unsent:
            return []
        self.gatherer.idle = False
        entries = [self._unsent.popleft()]
        count = entries[0].count
        most = min(
            max_count(self.sample_bytes), self._coalesce_bytes // max(1, self.sample_bytes)
        )
        while self._unsent:
            count += self._unsent[0].count
            if count > most or self._unsent[0].labelled != entries[0].labelled:
                break
            entries.append(self._unsent.popleft())
        self._sent.extend(entries)
        self._newest_sent = max(self._newest_sent, entries[-1].last)
        return entries

    def next_frame(self) -> tuple[Iterable[Buffer], int] | None:
        """The next entries as a frame, and the number of its last sample."""
        entries = self.next_entries()
        return (self.encode(entries, self.flags(entries)), entries[-1].last) if entries else None

    def flags(self, entries: list[Entry]) -> int:
        """Of their frame."""
        return self._requests.flags(entries[-1].last, self.taken) | (LABELS if entries[0].labelled else 0)

    def encode(self, entries: list[Entry], flags: int) -> Iterator[Buffer]:
        """A hook: the DATA frame of consecutive entries, as buffers to send in turn. Runs in the thread that writes, without a lock."""
        count = entries[-1].last - entries[0].first + 1
        columns = self._columns(entries[0].labelled)
        length = count * sum(columns)
        header = pack_header(Kind.DATA, flags=flags, count=count, seq=entries[0].first, length=length)
        if len(entries) == 1:
            whole = entries[0].pieces()
            if len(whole) > 1 and length < PIECE_BYTES * len(whole):
                yield b"".join((header, *whole))
            else:
                yield header
                yield from whole
            return
        pieces: list[Buffer] = [header]
        payloads = [entry.payload() for entry in entries]
        starts = [0] * len(entries)
        for size in columns:
            for i, entry in enumerate(entries):
                stop = starts[i] + entry.count * size
                pieces.append(payloads[i][starts[i] : stop])
                starts[i] = stop
        yield from [b"".join(pieces)] if length < PIECE_BYTES * len(pieces) else pieces

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
        self._requests.resume(number)
        if number > self._numbered and not self._unsent:
            # A session of this id that went on before: its numbers continue, and what is gathered comes after them.
            self.gatherer.note(number - self._numbered)
            self._numbered = self.acknowledged = self._newest_sent = number
        if not self.acknowledged <= number <= self._newest_sent:
            raise ProtocolError(
                f"the learner has {number} samples of this client, which sent {self._newest_sent}"
                f" and knows {self.acknowledged} committed; is its client_id used twice?"
            )
        self._release(self._unsent, number)

    def leftovers(self) -> Sequence[tuple[int, Buffer, bool]]:
        """The samples that are not acknowledged, as `Connection.leftovers` returns them."""
        self._number_gathered()
        while (chunk := self.gatherer.collect()) is not None:  # reserved rows that were committed, and wait until their chunk is full
            self._append(chunk.count, chunk, chunk.labelled)
        out: list[tuple[int, Buffer, bool]] = []
        for entry in (*self._sent, *self._unsent):
            done = max(0, self.acknowledged + 1 - entry.first)
            out.append((entry.count - done, self._rows_from(entry, done), entry.labelled))
        return out

    def _release(self, entries: deque[Entry], number: int) -> None:
        while entries and entries[0].last <= number:
            entries.popleft()
        self.acknowledged = number
        self._permit()
