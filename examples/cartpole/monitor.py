"""Measures the running job: rates, returns, policy lag, and who waits for whom."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .options import Options

if TYPE_CHECKING:
    from echo_core import Server
    from echo_core.wire.peer import Peer

    from .fleet import Fleet, Member

EPISODES = 100  # the mean return is over this many last episodes
_SMOOTHING = 1.0  # seconds: the time constant with which shown rates follow changes
_SHORTEST = 0.1  # seconds: the shortest interval whose rates are meaningful
_TREND = 40  # points of a sparkline


@dataclass(frozen=True)
class WorkerRow:
    """One worker's row in the view. Times are in seconds."""

    name: str
    pid: int
    state: str
    since: float
    samples: int
    version: int  # 0: holds no weights yet
    behind: int  # versions between its own and the newest
    waits: float  # share of its time that it waits for the learner, 0 to 1
    respawns: int
    alive: bool


@dataclass(frozen=True)
class Snapshot:
    """All values that a view shows at one moment."""

    elapsed: float
    mean_return: float
    best_return: float
    episodes: int
    reached_at: float | None
    learned_per_s: float  # samples that the learner took and learned from
    steps_per_s: float
    mb_per_s: float
    batches_per_s: float
    lag: float  # versions between acting and learning
    age_ms: float  # milliseconds between acting and learning
    version: int
    learner_waits: float  # share of its time that the learner waits for experience, 0 to 1
    workers_wait: float  # share of their time that the workers wait for the learner, 0 to 1
    stored: int
    capacity: int
    workers: list[WorkerRow]
    events: list[tuple[float, str]]


@dataclass
class History:
    """The data of the plot."""

    # One entry per batch.
    batch_time: list[float] = field(default_factory=list)
    mean_return: list[float] = field(default_factory=list)
    # One entry per observation, about four a second.
    time: list[float] = field(default_factory=list)
    learned_per_s: list[float] = field(default_factory=list)
    mb_per_s: list[float] = field(default_factory=list)
    batches_per_s: list[float] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)
    # One array per batch in which episodes ended.
    episode_time: list[NDArray[Any]] = field(default_factory=list)
    episode_return: list[NDArray[Any]] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)


class Monitor:
    """Collects the measurements. The learner reports each batch; a view asks for a `Snapshot` a few times per second."""

    def __init__(self, options: Options, sample_bytes: int) -> None:
        self.options = options
        self.sample_bytes = sample_bytes
        self.history = History()
        self.last: deque[float] = deque(maxlen=EPISODES)
        self.episodes = 0
        self.best = 0.0
        self.batches = 0
        self.samples = 0
        self.reached_at: float | None = None  # seconds; None while below the target
        self.first_reached: float | None = None
        self.lag_total = 0.0
        self.version = 0
        self._began = time.monotonic()
        self._ended = 0.0
        self._seen = self._began
        self._interval = _Interval()
        self._shown: dict[str, float] = {}
        self._waits: dict[int, float] = {}
        self._states: dict[str, tuple[str, float]] = {}  # by worker: its state, and since when (`time.monotonic()`)

    @property
    def elapsed(self) -> float:
        """Seconds since the job began, until learning ended."""
        return (self._ended or time.monotonic()) - self._began

    def finish(self) -> None:
        """End the measured time, because learning is over."""
        self._ended = self._ended or time.monotonic()

    @property
    def mean_return(self) -> float:
        """The mean return of the last `EPISODES` episodes; 0 before the first."""
        return float(np.mean(self.last)) if self.last else 0.0

    @property
    def held(self) -> float:
        """Seconds for which the mean return has been above the target; 0 if it is not above it."""
        return 0.0 if self.reached_at is None else self.elapsed - self.reached_at

    def learned(self, batch: dict[str, NDArray[Any]], version: int, waited: float) -> None:
        """Record one batch.

        ``version`` is the newest policy when learning from it began; ``waited`` are the seconds that
        the learner waited for it.
        """
        now = self.elapsed
        count = len(batch["version"])
        self.batches += 1
        self.samples += count
        self.version = version
        lag = version - batch["version"]
        self.lag_total += float(lag.mean())
        self._interval.add(
            count=count,
            waited=waited,
            lag=float(lag.mean()),
            age=float(time.time() - batch["made_at"].mean()),
        )
        for index, waits in zip(batch["worker"].tolist(), batch["waited"].tolist(), strict=True):
            self._waits[index] = 0.9 * self._waits.get(index, waits) + 0.1 * waits
        returns = batch["episode_return"]
        ended = returns[~np.isnan(returns)]
        if ended.size:
            self.last.extend(ended.tolist())
            self.episodes += ended.size
            self.best = max(self.best, float(ended.max()))
            self.history.episode_time.append(np.full(ended.size, now, np.float32))
            self.history.episode_return.append(ended)
        self.history.batch_time.append(now)
        self.history.mean_return.append(self.mean_return)
        above = len(self.last) == EPISODES and self.mean_return >= self.options.target > 0
        if not above:
            self.reached_at = None
        elif self.reached_at is None:
            self.reached_at = now
            if self.first_reached is None:
                self.first_reached = now
                self.happened(f"mean return above {self.options.target:g}")

    def idle(self, waited: float) -> None:
        """Record ``waited`` seconds in which no batch arrived."""
        self._interval.waited += waited

    def happened(self, text: str) -> None:
        """Record an event for the view and the plot."""
        self.history.events.append((self.elapsed, text))

    @contextmanager
    def remarks(self) -> Iterator[None]:
        """Within this context, Echo's warnings become events instead of lines across the view."""
        handler = _Remarks(self)
        logger = logging.getLogger("echo")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def observe(self, server: Server, fleet: Fleet) -> Snapshot:
        """The snapshot of this moment."""
        now = time.monotonic()
        if now - self._seen >= _SHORTEST or not self._shown:
            self._close_interval(now)
        stats = server.stats()
        shown = self._shown
        waits = list(self._waits.values())
        return Snapshot(
            elapsed=self.elapsed,
            mean_return=self.mean_return,
            best_return=self.best,
            episodes=self.episodes,
            reached_at=self.reached_at,
            learned_per_s=shown["samples"],
            steps_per_s=shown["samples"] * self.options.steps,
            mb_per_s=shown["samples"] * self.sample_bytes / 1e6,
            batches_per_s=shown["batches"],
            lag=shown.get("lag", 0.0),
            age_ms=1e3 * shown.get("age", 0.0),
            version=self.version,
            learner_waits=shown["waited"],
            workers_wait=float(np.mean(waits)) if waits else 0.0,
            stored=int(stats["store/samples"]),
            capacity=int(stats["store/capacity"]),
            workers=self._rows(server, fleet, now),
            events=self.history.events,
        )

    def _since(self, name: str, peer: Peer) -> float:
        """Since when every observation has shown this worker in its present state. A wait ends whenever the learner makes room for some samples,
        so the last of many waits in a row began only a moment ago."""
        state, since = self._states.get(name, ("", peer.state_since))
        since = min(since, peer.state_since) if state == peer.state else peer.state_since
        self._states[name] = peer.state, since
        return since

    def trend(self, name: str) -> list[float]:
        """The last values of one `History` field, for a sparkline."""
        return list(getattr(self.history, name)[-_TREND:])

    def _close_interval(self, now: float) -> None:
        seconds = max(now - self._seen, 1e-6)
        self._seen = now
        interval, self._interval = self._interval, _Interval()
        rates = {
            "samples": interval.samples / seconds,
            "batches": interval.batches / seconds,
            "waited": min(1.0, interval.waited / seconds),
        }
        if interval.batches:  # an interval without a batch has no values for these
            rates["lag"] = interval.lag / interval.batches
            rates["age"] = interval.age / interval.batches
        keep = float(np.exp(-seconds / _SMOOTHING))
        for key, value in rates.items():
            self._shown[key] = keep * self._shown.get(key, value) + (1.0 - keep) * value
        self._remember(rates)

    def _remember(self, rates: dict[str, float]) -> None:
        history = self.history
        history.time.append(self.elapsed)
        history.learned_per_s.append(rates["samples"])
        history.mb_per_s.append(rates["samples"] * self.sample_bytes / 1e6)
        history.batches_per_s.append(rates["batches"])
        history.lag.append(rates.get("lag", float("nan")))

    def _rows(self, server: Server, fleet: Fleet, now: float) -> list[WorkerRow]:
        # The predecessor of a respawned worker may still be listed; the later entry wins.
        peers = {peer.name: peer for peer in server.peers()}
        rows = []
        for member in fleet.members:
            peer = peers.get(member.name)
            if peer is None or not member.alive:
                state, since = _absent(member, now)
                samples = version = 0
            else:
                state, since = peer.state, max(0.0, now - self._since(member.name, peer))
                samples, version = peer.samples, peer.weights_version
            rows.append(
                WorkerRow(
                    name=member.name,
                    pid=member.pid,
                    state=state,
                    since=since,
                    samples=samples,
                    version=version,
                    behind=max(0, self.version - version) if version else 0,
                    waits=self._waits.get(member.index, 0.0),
                    respawns=member.respawns,
                    alive=member.alive,
                )
            )
        return rows


def _absent(member: Member, now: float) -> tuple[str, float]:
    if not member.alive:
        return member.cause or "dead", now - (member.died or now)
    return "starting", now - member.started


class _Remarks(logging.Handler):
    def __init__(self, monitor: Monitor) -> None:
        super().__init__(logging.WARNING)
        self._monitor = monitor

    def emit(self, record: logging.LogRecord) -> None:
        # Echo writes "worker NAME", and our workers are named worker-0 and so on.
        self._monitor.happened(record.getMessage().replace("worker worker-", "worker-"))


@dataclass
class _Interval:
    """Sums since the last observation."""

    batches: int = 0
    samples: int = 0
    waited: float = 0.0
    lag: float = 0.0
    age: float = 0.0

    def add(self, count: int, waited: float, lag: float, age: float) -> None:
        self.batches += 1
        self.samples += count
        self.waited += waited
        self.lag += lag
        self.age += age
