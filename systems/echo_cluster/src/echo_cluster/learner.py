"""A learner that draws from several shards as from one table."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core import Address, Client, ClosedError, ConfigError, EchoError, EchoTimeoutError, Server
from echo_core.base.waiting import shown
from echo_core.spec.ragged_leaf import has_ragged

from .draw import ClusterSample, Draw, Kept
from .keys import check_keys
from .members import find_members
from .shard import UNAVAILABLE, VERDICTS, Shard, ShardState
from .shares import chances, counts
from .upkeep import Upkeep

if TYPE_CHECKING:
    from echo_core import Published

    from .members import Member

__all__ = ["ClusterLearner"]

_log = logging.getLogger("echo")

EMPTY_SECONDS = 0.02  # between two questions for masses while all shards are empty


class ClusterLearner:
    """Draws batches from all shards of a cluster, exactly as from one table with the items of all of them.

    Args:
        members: who is there; see `members.find_members`.
        example: one sample, like the shards'; for tables of steps, `Steps(example)`.
        table: the table's name at every shard; None is the first one.
        patience: seconds that a batch waits for a shard. A shard that has given nothing then is left out of the batch, and until it answers or has items again.
        seed: of the random numbers that round the counts of shards; None takes one from the system.
        weights: an address at which this learner serves its weights, such as `"tcp://10.0.0.1:7000"`, for shards with `weights_from`. None:
            nothing listens, and `publish` is an error.
        timeout: seconds, the default timeout of every wait, and how long the learner tries to reach the first shard.
        token, auth, name, **options: as `Client` takes them, for every shard.

    Raises:
        EchoTimeoutError: no shard was reached in time; the message says why each was not. SecurityError, ConfigError: as in `find_members`.

    All calls are thread-safe. Data-parallel learners each have a ClusterLearner; with tables that lease their items (`lease_timeout`) they draw
    disjoint batches.
    """

    def __init__(
        self,
        members: Any,
        example: Any,
        *,
        table: str | None = None,
        patience: float = 1.0,
        seed: int | None = None,
        weights: str | Address | None = None,
        timeout: float = 30.0,
        token: Any = None,
        auth: bool = True,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if not hasattr(patience, "__float__") or not 0 < patience < float("inf"):
            raise ConfigError(f"patience must be a number of seconds above 0, not {patience!r}")
        self._patience, self._timeout, self._table, self._example = patience, timeout, table, example
        self._random, self._lock, self._closed = np.random.default_rng(seed), threading.Lock(), False
        self._batches = self._degraded = self._waited_out = self._gone = 0
        self._kept: deque[Kept] = deque()  # what came for batches that were given up
        self._publisher: Server | None = None

        def connect(address: Address, seconds: float) -> Client:
            # No call may wait longer than `patience` for a shard that is away, and connecting may take longer.
            return Client(address, example, name=name, timeout=patience, connect_timeout=seconds, token=token, auth=auth, table=table, **options)

        servers: dict[str, Shard] = {}

        def make(number: int, member: Member) -> Shard:
            return Shard(number, member, connect, table, servers)

        found = find_members(members, auth=auth)
        self._upkeep: Upkeep | None = None
        try:
            if weights is not None:
                self._publisher = Server(transport=str(weights), token=token).start()
            self._upkeep = Upkeep(found, make, patience)
            self._wait_for_shards(timeout)
        except BaseException:
            self._end()
            raise

    def _wait_for_shards(self, timeout: float) -> None:
        """Return when all shards are up, or one is and the patience for the others is over. If all refuse this learner, raise the error of one."""
        began, upkeep = time.monotonic(), self._upkeep
        assert upkeep is not None
        while True:
            shards = upkeep.shards
            states = [shard.state for shard in shards]
            passed = time.monotonic() - began
            if "up" in states and ("down" not in states or passed >= self._patience):
                return
            refusals = [shard.refusal for shard in shards if shard.state == "refused" and isinstance(shard.refusal, VERDICTS)]
            if refusals and len(refusals) == len(shards):
                raise refusals[0]
            if passed >= timeout:
                raise EchoTimeoutError(f"no shard was reached within {shown(timeout)} s: {self._why()}")
            upkeep.wait(min(0.05, timeout - passed))

    def _why(self) -> str:
        shards = self.shards
        if not shards:
            return "the members name no shard yet"
        return "; ".join(f"{shard.name} is {shard.state}" + (f" ({shard.error})" if shard.error else "") for shard in shards)

    def _seconds(self, timeout: float | None) -> float:
        """The timeout of a call."""
        seconds = self._timeout if timeout is None else timeout
        if not seconds >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, not {seconds!r}")
        return seconds

    # ---- batches ----------------------------------------------------------------------------------------------------------

    def sample(self, n: int, timeout: float | None = None, *, beta: float | None = None) -> ClusterSample:
        """Draw n items. The items of one shard lie together in the batch.

        Args:
            n: items.
            timeout: seconds to wait until shards have so many; None is the learner's.
            beta: exponent of the weights; None is the tables' own.

        Returns:
            A `ClusterSample`; of tables of steps a `StepSample`, and of samples of varying length a `RecordSample`, both with the cluster's keys and a
            `ClusterInfo`.

        Raises:
            EchoTimeoutError: there was no such batch in time; the message says how each shard is. Items that have come and cannot be drawn again are in
                the next batch. ValueError: n is not a whole number of at
                least 1. ClosedError: the learner is closed.
        """
        draw = self._begin(n, beta, timeout)
        try:
            return self._finish(draw, timeout)
        except BaseException as error:
            self._give_up(draw, isinstance(error, EchoError))
            raise

    def _begin(self, n: int, beta: float | None, timeout: float | None) -> Draw:
        """Ask shards for a batch."""
        if not hasattr(type(n), "__index__") or n < 1:
            raise ValueError(f"n must be a whole number of at least 1, not {n!r}")
        seconds, upkeep = self._seconds(timeout), self._open()
        draw = Draw(int(n), beta)
        with self._lock:
            draw.take(self._kept)
        if not draw.missing:
            return draw
        self._ask(draw, upkeep, seconds)
        return draw

    def _ask(self, draw: Draw, upkeep: Upkeep, left: float) -> bool:
        """Ask shards for what is missing, all at once. False if none of them has items.

        A shard that gives nothing within the patience is left out. If there is no other, it is waited for until the end.
        """
        shards = upkeep.shards
        up = [(shard, reached) for shard in shards if (reached := shard.reached()) is not None]
        draw.degraded = draw.degraded or (len(shards) > 1 and len(up) < sum(shard.present and not shard.twin for shard in shards))
        for shard, _ in up:
            draw.masses.setdefault(shard, shard.mass)
        if len(shards) == 1 and up:
            draw.ask(*up[0], draw.missing, left)
            return True
        full = [(shard, reached) for shard, reached in up if draw.masses[shard] > 0]
        if not full:
            return False
        asked = [(shard, reached) for shard, reached in full if shard not in draw.failed and not shard.resting()]
        if all(shard.waits for shard, _ in asked):  # there is no other, so they are waited for
            asked, hurry = full, False
        else:
            hurry = True
            draw.failed.update(shard for shard, _ in full if shard.resting())
        with self._lock:
            uniform = float(self._random.random())
        for (shard, reached), count in zip(asked, counts(chances([draw.masses[shard] for shard, _ in asked]), draw.missing, uniform).tolist()):
            if count:  # a table that has waited in vain must not hold up the others
                draw.ask(shard, reached, count, 0.0 if hurry and shard.waits else min(self._patience, left))
        return True

    def _finish(self, draw: Draw, timeout: float | None) -> ClusterSample:
        """Take the parts that were asked for, and ask again for those that do not come."""
        ends = time.monotonic() + self._seconds(timeout)
        upkeep = self._open()
        while True:
            draw.collect()
            if not draw.missing:
                break
            left = ends - time.monotonic()
            if left <= 0:
                raise EchoTimeoutError(f"sample() had {draw.n - draw.missing} of {draw.n} items in time: {self._why()}")
            self._open()
            if not self._ask(draw, upkeep, left):
                upkeep.ask_now()
                upkeep.wait(min(EMPTY_SECONDS, left))
                drawn = {part.shard for part in draw.parts}
                draw.masses = {shard: mass for shard, mass in draw.masses.items() if shard in drawn}
        draw.degraded = draw.degraded or (bool(draw.failed) and len(upkeep.shards) > 1)
        self._waited_out += draw.failures
        self._batches += 1
        self._degraded += draw.degraded
        sample: ClusterSample = draw.made(self._shares(draw), self._table)
        return sample

    def _give_up(self, draw: Draw, keep: bool) -> None:
        """Nobody waits for this batch any more. With `keep`, parts that have come are kept for the next one if their tables do not have the items any
        more, because nobody could draw them again."""
        draw.withdraw()
        found = draw.spent(self._patience) if keep and not self._closed else []
        with self._lock:
            self._kept.extend(found)

    def _shares(self, draw: Draw) -> dict[Shard, float]:
        """The probability of each shard in a batch: shards that have failed are left out, unless they have given a part."""
        for part in draw.parts:
            if not draw.masses.get(part.shard):  # it was kept, and its shard is empty or away now
                draw.masses[part.shard] = part.mass
        drawn = {part.shard for part in draw.parts}
        there = [shard for shard in draw.masses if shard in drawn or shard not in draw.failed]
        if len(there) == 1:
            return {there[0]: 1.0}
        return dict(zip(there, chances([draw.masses[shard] for shard in there]).tolist()))

    def dataset_iter(self, n: int, prefetch: int = 2, *, timeout: float | None = None, beta: float | None = None) -> Iterator[ClusterSample]:
        """Yield batches of n items until the learner is closed. While the caller works on one, `prefetch` further batches are on the way.

        A batch on the way is already drawn: items that can be drawn only once are lost with it, unless their table has a lease. Of samples of
        varying length, none is drawn ahead, because each server would keep them.
        """
        ahead = 0 if has_ragged(self._example) else max(0, prefetch)
        draws: deque[Draw] = deque()
        try:
            while True:
                try:
                    while len(draws) <= ahead:
                        draws.append(self._begin(n, beta, timeout))
                    sample = self._finish(draws[0], timeout)
                except ClosedError:
                    if not self._closed:
                        raise
                    return
                draws.popleft()
                yield sample
        finally:
            failed = isinstance(sys.exc_info()[1], EchoError)
            for draw in draws:
                self._give_up(draw, failed)

    # ---- what is said about items -----------------------------------------------------------------------------------------

    def update_priorities(self, keys: Any, priorities: Any, timeout: float | None = None) -> int:
        """Give items new priorities. Returns how many of them were gone: also those of a shard that is down, or was restarted since the draw."""
        checked = check_keys(keys)
        values = np.asarray(priorities, np.float64)
        if values.shape != checked.shape:
            raise ValueError(f"priorities must have the shape of the keys, {checked.shape}, not {values.shape}")
        return self._tell(checked, lambda client, part, mask, left: client.update_priorities(part, values[mask], left, table=self._table), timeout, True)

    def ack(self, keys: Any, timeout: float | None = None) -> int:
        """Confirm that the work on leased items is done. Returns how many were leased; those of a shard that is down are delivered again."""
        return self._tell(check_keys(keys), lambda client, part, mask, left: client.ack(part, left, table=self._table), timeout, False)

    def delete(self, keys: Any, timeout: float | None = None) -> int:
        """Delete items. Returns how many were there."""
        return self._tell(check_keys(keys), lambda client, part, mask, left: client.table(self._table).delete(part, left), timeout, False)

    def _tell(self, keys: Any, tell: Callable[[Client, Any, Any, float], int], timeout: float | None, counts_gone: bool) -> int:
        """Call `tell` for the keys of each shard that is still in the life of the keys. Sums up what it returns."""
        shards, total = self._open().shards, 0
        ends = time.monotonic() + self._seconds(timeout)
        for number in np.unique(keys["shard"]).tolist():
            mask = keys["shard"] == number
            shard = shards[number] if number < len(shards) else None
            if shard is not None and shard.ready() and (client := shard.client) is not None:
                mask &= keys["life"] == shard.life % (1 << 16)
                left = max(0.0, ends - time.monotonic())
                left = left if len(shards) == 1 else min(left, self._patience)
                try:
                    if mask.any():
                        total += tell(client, keys["key"][mask], mask, left)
                    if counts_gone:
                        total += int((keys["shard"] == number).sum() - mask.sum())
                    continue
                except UNAVAILABLE as error:
                    shard.failed(error, left)
                    mask = keys["shard"] == number
            total += int(mask.sum()) if counts_gone else 0
        self._gone += total if counts_gone else 0
        return total

    # ---- weights, looking, and the end ------------------------------------------------------------------------------------

    def publish(self, weights: Any, version: int | None = None) -> Published:
        """Publish weights for the shards that pass them on (`Server(weights_from=...)`). Each shard gets one copy, however many workers it has.

        Raises:
            ConfigError: this learner serves no weights; give it `weights=`.
        """
        if self._publisher is None:
            raise ConfigError('this learner serves no weights; use ClusterLearner(..., weights="tcp://HOST:PORT") and weights_from= at the shards')
        return self._publisher.publish(weights, version)

    @property
    def weights_address(self) -> Address | None:
        """Where this learner serves its weights."""
        return None if self._publisher is None else self._publisher.addresses[0]

    @property
    def shards(self) -> list[ShardState]:
        """All shards that ever were members, in the order of their numbers in keys."""
        return [] if self._upkeep is None else [shard.shown() for shard in self._upkeep.shards]

    def stats(self) -> dict[str, Any]:
        """Figures of this learner as a flat dict: batches, how many of them left a shard out, how often a shard was waited for in vain, and
        shards, items and masses by state."""
        shards = self.shards
        up = [shard for shard in shards if shard.state == "up"]
        return {
            "batches": self._batches,
            "batches_degraded": self._degraded,
            "shards_waited_out": self._waited_out,
            "updates_gone": self._gone,
            "shards": len(shards),
            "shards_up": len(up),
            "items": sum(shard.size for shard in up),
            "mass": sum(shard.mass for shard in up),
        }

    def _open(self) -> Upkeep:
        if self._closed or self._upkeep is None:
            raise ClosedError("this learner is closed")
        return self._upkeep

    def close(self, timeout: float = 5.0) -> None:
        """End the job: shards that `serve_shard` runs end, and so do their workers. Idempotent. A shard that ends by itself does not end the job.

        A shard that does not answer is tried until the `timeout` is over. The log names those that could not be told; `echoctl drain` ends them.
        """
        with self._lock:
            first, self._closed = not self._closed, True
        try:
            if first and self._upkeep is not None:
                self._end_job(self._upkeep, self._seconds(timeout))
        finally:
            self._end()

    def _end_job(self, upkeep: Upkeep, seconds: float) -> None:
        """Tell all shards at the same time that the job has ended."""
        ends = time.monotonic() + seconds
        untold: dict[str, str] = {}

        def tell(shard: Shard) -> None:
            if why := shard.end_job(ends, upkeep.wait):
                untold[shard.member.name] = why

        threads = [threading.Thread(target=tell, args=(shard,), name="echo-cluster-end", daemon=True) for shard in upkeep.shards]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if untold:
            _log.warning("close() could not tell these shards that the job has ended: %s", "; ".join(f"{name}: {why}" for name, why in untold.items()))

    def _end(self) -> None:
        self._closed = True
        if self._upkeep is not None:
            self._upkeep.close()
        if self._publisher is not None:
            self._publisher.close()

    def __enter__(self) -> ClusterLearner:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # a learner that has failed may come back, so its workers wait
            self._end()
