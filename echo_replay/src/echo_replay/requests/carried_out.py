"""Which requests of clients were carried out, so that one that is sent again after a lost connection is not carried out twice: inserts, draws
of items that are drawn only a few times, and requests that end items and tell how many there were."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echo_core.wire.peer import Peer

__all__ = ["CarriedOut"]

CLIENTS, NUMBERS = 4096, 64  # how many clients are remembered, and of each how many of its last requests


class _Numbers:
    """The numbers of one client's requests: the last ones with their answers, and the largest of those that were forgotten."""

    def __init__(self) -> None:
        self.last: dict[int, dict[str, Any] | None] = {}
        self.forgotten = -1
        self.one_at_a_time = threading.Lock()

    def by(self, number: object) -> str:
        """Whether a request was carried out: "yes", "unknown", or "" if not."""
        if number in self.last:
            return "yes"
        return "" if isinstance(number, int) and number > self.forgotten else "unknown"

    def add(self, number: int, answer: dict[str, Any] | None) -> None:
        self.last[number] = answer
        if len(self.last) > NUMBERS:
            oldest = next(iter(self.last))
            del self.last[oldest]
            self.forgotten = max(self.forgotten, oldest)


class CarriedOut:
    """The requests of each client, by the client's id, which stays the same across reconnects. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[str, _Numbers] = OrderedDict()
        self._forgot = False  # a client was forgotten, because there were too many

    def once(self, peer: Peer, body: dict[str, Any], carry_out: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Carry a request out, and remember its answer. One that is sent again gets the answer of the first time."""
        number, again = body.get("number"), body.get("again") is True
        if type(number) is not int:
            return carry_out()
        with self._lock:
            if again and self._forgot and peer.id not in self._of:
                return {"carried_out": "unknown"}
            numbers = self._numbers_of(peer)
        with numbers.one_at_a_time:  # the lost connection may have left the request in progress
            if again and (done := numbers.by(number)):
                return numbers.last.get(number) or {"carried_out": done}
            answer = carry_out()
            with self._lock:
                numbers.add(number, answer)
        return answer

    def add(self, peer: Peer, number: object) -> None:
        """A request of the client was carried out, or a part of it. Without a number it will not be sent again."""
        if type(number) is not int:
            return
        with self._lock:
            if (numbers := self._of.get(peer.id)) is None or number not in numbers.last:
                self._numbers_of(peer).add(number, None)

    def by(self, peer: Peer, number: object) -> str:
        """Whether an earlier request was carried out: "yes", "unknown", or "" if not. A client counts its requests upwards."""
        with self._lock:
            numbers = self._of.get(peer.id)
            if numbers is None:
                return "unknown" if self._forgot else ""
            return numbers.by(number)

    def _numbers_of(self, peer: Peer) -> _Numbers:
        """The numbers of the client, which was here last now; the lock is held."""
        numbers = self._of.setdefault(peer.id, _Numbers())
        self._of.move_to_end(peer.id)
        if len(self._of) > CLIENTS:
            self._of.popitem(last=False)
            self._forgot = True
        return numbers
