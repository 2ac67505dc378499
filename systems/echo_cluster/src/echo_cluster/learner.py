"""A learner that draws from several shards as from one table."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core import Address, Client, ClosedError, ConfigError, EchoError, EchoTimeoutError, Server

from .draw import ClusterSample, Part, joined
from .keys import check_keys
from .members import find_members
from .shard import UNAVAILABLE, Shard, ShardState
from .shares import chances, counts
from .upkeep import Upkeep

if TYPE_CHECKING:
    from echo_core import Published

    from .members import Member

__all__ = ["ClusterLearner"]

EMPTY_SECONDS = 0.02  # between two questions for masses while all shards are empty


class ClusterLearner:
    """Draws batches from all shards of a cluster, exactly as from one table with the items of all of them.

    Args:
        members: who is there; see `members.find_members`.
        example: one sample, like the shards'; for tables of steps, `Steps(example)`.
        table: the table's name at every shard; None is the first one.
        patience: seconds that a batch waits for a shard. A shard that has not answered then is left out of the batch, and until it answers again.
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
        if not 0 < patience < float("inf"):
            raise ConfigError(f"patience must be a number of seconds above 0, not {patience!r}")
        self._patience, self._timeout, self._table = patience, timeout, table
        self._random, self._lock, self._closed = np.random.default_rng(seed), threading.Lock(), False
        self._batches = self._degraded = self._waited_out = self._gone = 0
        self._publisher: Server | None = None

        def connect(address: Address) -> Client:
            return Client(address, example, name=name, timeout=5.0, token=token, auth=auth, table=table, **options)

        def make(number: int, member: Member) -> Shard:
            return Shard(number, member, connect, table)

        found = find_members(members, auth=auth)
        self._draws = ThreadPoolExecutor(64, "echo-cluster-draw")
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
        """Return when all shards are up, or one is and the patience for the others is over."""
        began, upkeep = time.monotonic(), self._upkeep
        assert upkeep is not None
        while True:
            shards = upkeep.shards
            up = sum(shard.state == "up" for shard in shards)
            passed = time.monotonic() - began
            if up and (up == len(shards) or passed >= self._patience):
                return
            if passed >= timeout:
                raise EchoTimeoutError(f"no shard was reached within {timeout:g} s: {self._why()}")
            upkeep.wait(0.05)

    def _why(self) -> str:
        shards = self.shards
        if not shards:
            return "the members name no shard yet"
        return "; ".join(f"{shard.name} is {shard.state}" + (f" ({shard.error})" if shard.error else "") for shard in shards)

    # ---- batches ----------------------------------------------------------------------------------------------------------

    def sample(self, n: int, timeout: float | None = None, *, beta: float | None = None) -> ClusterSample:
        """Draw n items. The items of one shard lie together in the batch.

        Args:
            n: items.
            timeout: seconds to wait until shards have so many; None is the learner's.
            beta: exponent of the weights; None is the tables' own.

        Raises:
            EchoTimeoutError: there was no such batch in time; the message says how each shard is. ValueError: n is not a whole number of at
                least 1. ClosedError: the learner is closed.
        """
        if not hasattr(type(n), "__index__") or n < 1:
            raise ValueError(f"n must be a whole number of at least 1, not {n!r}")
        ends = time.monotonic() + (self._timeout if timeout is None else timeout)
        parts: list[Part] = []
        missing, degraded = n, False
        masses: dict[Shard, float] = {}  # by which this batch is drawn; they may change meanwhile
        while missing:
            left = ends - time.monotonic()
            upkeep = self._open()
            up = [shard for shard in upkeep.shards if shard.ready()]
            only = len(upkeep.shards) == 1 and bool(up)
            for shard in up:
                masses.setdefault(shard, shard.mass)
            if not only and not any(masses[shard] > 0 for shard in up):
                if left <= 0:
                    raise EchoTimeoutError(f"sample() found no items within its timeout: {self._why()}")
                upkeep.ask_now()
                upkeep.wait(min(EMPTY_SECONDS, left))
                masses = {shard: masses[shard] for shard in (part.shard for part in parts)}
                continue
            with self._lock:
                uniform = float(self._random.random())
            wanted = [(up[0], missing)] if only else self._shared(up, masses, missing, uniform)
            # A shard that does not answer is waited for until the end only if there is no other.
            drawn, failed = self._ask(wanted, beta, max(left, 0.0) if only else min(self._patience, max(left, 0.0)))
            parts += drawn
            missing -= sum(part.n for part in drawn)
            if failed:
                degraded = True
                self._waited_out += len(failed)
                if ends - time.monotonic() <= 0:
                    raise EchoTimeoutError(f"sample() had {n - missing} of {n} items in time: {self._why()}")
        shares = self._final_shares(parts, masses, upkeep)
        degraded = degraded or any(shard.present and not shard.ready() for shard in upkeep.shards)
        self._batches += 1
        self._degraded += degraded
        return joined(parts, shares, degraded, self._table)

    def _shared(self, up: list[Shard], masses: dict[Shard, float], n: int, uniform: float) -> list[tuple[Shard, int]]:
        found = counts(chances([masses[shard] for shard in up]), n, uniform)
        return [(shard, int(count)) for shard, count in zip(up, found) if count]

    def _ask(self, wanted: list[tuple[Shard, int]], beta: float | None, seconds: float) -> tuple[list[Part], list[Shard]]:
        """Ask shards at the same time, the first in this thread. Returns what was drawn, and who did not answer."""
        under_way = [(shard, self._draws.submit(self._draw, shard, count, beta, seconds)) for shard, count in wanted[1:]]
        parts, failed = [], []
        error: BaseException | None = None
        results: list[tuple[Shard, Callable[[], Part]]] = [(wanted[0][0], lambda: self._draw(*wanted[0], beta, seconds))]
        results += [(shard, future.result) for shard, future in under_way]
        for shard, result in results:
            try:
                parts.append(result())
            except UNAVAILABLE as reason:
                shard.failed(reason)
                failed.append(shard)
            except Exception as reason:  # a mistake of the caller; the other answers are still taken
                error = error or reason
        if error is not None:
            raise error
        return parts, failed

    def _draw(self, shard: Shard, n: int, beta: float | None, seconds: float) -> Part:
        client = shard.client
        if client is None:
            raise ClosedError(f"shard {shard.member.name} has left")
        life = shard.life  # before the draw: keys of a server that is restarted meanwhile then count as gone, which is safe
        sample = client.sample(n, seconds, table=self._table, beta=beta)
        shard.told(sample.info.mass, sample.info.store_size)
        return Part(shard, life, sample)

    def _final_shares(self, parts: list[Part], masses: dict[Shard, float], upkeep: Upkeep) -> dict[Shard, float]:
        """The probability of each shard in this batch: shards that failed are left out, unless they have given a part."""
        if len(parts) == 1 and len(upkeep.shards) == 1:
            return {parts[0].shard: 1.0}
        drawn = {part.shard for part in parts}
        there = [shard for shard in masses if shard in drawn or shard.state == "up"]
        return dict(zip(there, chances([masses[shard] for shard in there]).tolist()))

    def dataset_iter(self, n: int, prefetch: int = 2, *, timeout: float | None = None, beta: float | None = None) -> Iterator[ClusterSample]:
        """Yield batches of n items until the learner is closed, with `prefetch` of them on the way.

        A batch on the way is already drawn: items that can be drawn only once are lost with it, unless their table has a lease.
        """
        under_way: deque[Future[ClusterSample]] = deque()
        ahead = ThreadPoolExecutor(max(1, prefetch), "echo-cluster-prefetch")
        try:
            while not self._closed:
                while len(under_way) < prefetch:
                    under_way.append(ahead.submit(self.sample, n, timeout, beta=beta))
                try:
                    sample = under_way.popleft().result() if under_way else self.sample(n, timeout, beta=beta)
                except ClosedError:
                    return
                yield sample
        finally:
            for one in under_way:
                one.cancel()
            ahead.shutdown()

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
        ends = time.monotonic() + (self._timeout if timeout is None else timeout)
        for number in np.unique(keys["shard"]).tolist():
            mask = keys["shard"] == number
            shard = shards[number] if number < len(shards) else None
            if shard is not None and shard.ready() and (client := shard.client) is not None:
                mask &= keys["life"] == shard.life % (1 << 16)
                left = max(0.0, ends - time.monotonic())
                try:
                    if mask.any():
                        total += tell(client, keys["key"][mask], mask, left if len(shards) == 1 else min(left, self._patience))
                    if counts_gone:
                        total += int((keys["shard"] == number).sum() - mask.sum())
                    continue
                except UNAVAILABLE as error:
                    shard.failed(error)
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
        """End the job: shards that `serve_shard` runs end, and so do their workers. Idempotent. A shard that ends by itself does not end the job."""
        if not self._closed and self._upkeep is not None:
            for shard in self._upkeep.shards:
                client = shard.client
                if client is not None and shard.ready():
                    with contextlib.suppress(EchoError):  # other servers do not know it, and a token may not be that of an admin
                        client.request("cluster/end", timeout=timeout)
        self._end()

    def _end(self) -> None:
        self._closed = True
        if self._upkeep is not None:
            self._upkeep.close()
        if self._publisher is not None:
            self._publisher.close()
        self._draws.shutdown()

    def __enter__(self) -> ClusterLearner:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # a learner that has failed may come back, so its workers wait
            self._end()
