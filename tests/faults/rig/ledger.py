"""What has arrived, in memory that does not grow with it; and a learner that takes everything."""

from __future__ import annotations

import threading
import time
from typing import Any

from echo_core import EchoTimeoutError, Server
from echo_testing.samples import Tally, stacked

__all__ = ["TOP_UP", "Consumer", "Ledger"]

TOP_UP = 1 << 40  # maker of the samples that fill the last batch


class Ledger:
    """Counts the samples of each maker and fails at the first that is torn or comes twice.

    Attributes:
        count: samples that have come, by maker.
        due: the first number that has not, by maker.
    """

    def __init__(self) -> None:
        self.count: dict[int, int] = {}
        self.due: dict[int, int] = {}
        self._early: dict[int, set[int]] = {}  # numbers above `due`

    @property
    def total(self) -> int:
        return sum(self.count.values())

    def add(self, batch: dict[str, Any]) -> None:
        tally = Tally()
        tally.add(batch)  # looks for torn ones
        for maker, numbers in tally.numbers.items():
            due, early = self.due.get(maker, 0), self._early.setdefault(maker, set())
            for number in numbers:
                assert number >= due and number not in early, f"{number} of {maker} came twice"
                if number != due:
                    early.add(number)
                    continue
                due += 1
                while due in early:
                    early.remove(due)
                    due += 1
            self.due[maker] = due
            self.count[maker] = self.count.get(maker, 0) + len(numbers)

    def check(self, expected: dict[int, int]) -> None:
        """Samples 0 to count - 1 of each maker have come, and no others."""
        for maker, early in self._early.items():
            assert not early, f"{self.due[maker]} of {maker} is missing, {min(early)} is here"
        came, wanted = (
            {maker: n for maker, n in counts.items() if n and maker != TOP_UP}
            for counts in (self.count, expected)
        )
        assert came == wanted


class Consumer:
    """Takes every batch of `server` on a thread of its own and keeps the ledger.

    `pause`: seconds it takes for each batch in addition.
    `first`: the first number of each maker that is its own; those before went to another learner.
    """

    def __init__(
        self, server: Server, pause: float = 0.0, first: dict[int, int] | None = None
    ) -> None:
        self.server = server
        self._pause = pause
        self.ledger = Ledger()
        self.ledger.due.update(first or {})  # before anything can come
        self._finish_at: int | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="consumer")
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._finish_at is None or self.ledger.total < self._finish_at:
                try:
                    sample = self.server.sample(timeout=0.2)
                except EchoTimeoutError:
                    continue
                if sample is None:
                    return
                self.ledger.add(sample.batch)
                del sample
                if self._pause:
                    time.sleep(self._pause)
        except BaseException as failure:
            self._failure = failure

    def check(self) -> None:
        """Fails if the consumer has."""
        if self._failure is not None:
            raise self._failure

    def wait_for(self, maker: int, count: int, within: float = 60.0) -> None:
        """Until so many samples of `maker` have come."""
        end = time.monotonic() + within
        while self.ledger.count.get(maker, 0) < count:
            self.check()
            assert time.monotonic() < end, (
                f"{self.ledger.count.get(maker, 0)} of {count} samples of {maker}"
                f" within {within:g} s; {self.server.peers()}"
            )
            time.sleep(0.002)

    def finish(self, within: float = 60.0) -> Ledger:
        """Take all that was committed, also what does not fill a batch. No more may be coming."""
        inserted = self._settled(within)
        missing = -inserted % self.server.batch_size
        filler = self.server.spec.leaves[0].shape[0]
        self.server.submit_batch(stacked(TOP_UP, 0, missing, filler), timeout=within)
        self._finish_at = inserted + missing
        self._thread.join(within)
        self.check()
        assert not self._thread.is_alive(), f"{self.ledger.total} of {self._finish_at} samples came"
        assert self.ledger.total == self._finish_at == self.inserted()
        return self.ledger

    def _settled(self, within: float) -> int:
        """How many samples were committed, once every whole batch has been taken: one that is just being taken may be missing from the count."""
        end = time.monotonic() + within
        while True:
            seen = inserted, total = self.inserted(), self.ledger.total
            time.sleep(0.05)
            if 0 <= inserted - total < self.server.batch_size and seen == (self.inserted(), self.ledger.total):
                return inserted
            self.check()
            assert time.monotonic() < end, f"{total} of {inserted} samples were taken within {within:g} s"

    def inserted(self) -> int:
        return int(self.server.stats()["store/samples_inserted_total"])

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._finish_at is None:
            self._finish_at = 0
        self._thread.join(20)
