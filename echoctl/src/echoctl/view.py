"""Computes the content of a live view from two reads of a server's statistics: rates, fill, lag, and who waits for whom since when."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from echo_core.base.plural import counted
from echo_core.server.statistics.added_stats import GROUPS

__all__ = ["HOLDS", "Snapshot", "TableRow", "Watcher", "WorkerRow"]

Stats = Mapping[str, Any]


@dataclass(frozen=True)
class WorkerRow:
    """One worker's row: rates per second, `lag` in policy versions (None: it holds no weights), `since` in seconds, `waits_for` is why it waits
    for space ("" if it does not).

    A worker that waits, sends a few samples and waits again is in the same state at every look; `since` is then the time since the first of
    these looks, although the wait of this moment began later."""

    name: str
    inserted: int
    inserts_per_s: float
    bytes_per_s: float
    weights_version: int
    lag: int | None
    state: str
    since: float
    waits_for: str


@dataclass(frozen=True)
class TableRow:
    """One replay table's row: rates per second, `samples_per_insert` since the start, `size` and `capacity` in items (steps for a table of
    steps), `holds` is who the rate limiter holds now, `why` is its reason, `since` in seconds."""

    name: str
    size: int
    capacity: int
    inserts_per_s: float
    draws_per_s: float
    samples_per_insert: float
    holds: str
    why: str
    since: float


#: The ends that a limiter holds, by the statistic `blocked` of a table.
HOLDS = {"": "nobody", "inserts": "the workers", "samples": "the learner", "inserts+samples": "both"}


@dataclass(frozen=True)
class Snapshot:
    """The state of a server at one moment. Rates are per second since the last read: inserts are samples that workers put into the store, and
    draws are samples that the learner takes from it; `fill` is from 0 to 1; `others` are figures of
    `Server.add_stats`."""

    time: float
    inserts_per_s: float
    draws_per_s: float
    bytes_per_s: float
    batches_per_s: float
    inserts_total: int
    batches_total: int
    stored: int
    capacity: int
    batch_size: int
    fill: float
    leases_held: int
    weights_version: int
    weights_age_s: float
    lag_mean: float
    lag_max: int
    waits: list[str] = field(default_factory=list)
    workers: list[WorkerRow] = field(default_factory=list)
    tables: list[TableRow] = field(default_factory=list)
    others: dict[str, float | int | str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Watcher:
    """Turns successive statistics into snapshots."""

    def __init__(self) -> None:
        self._last: Stats = {}
        self._at = 0.0
        self._held_since: dict[tuple[str, str], float] = {}  # by table and `blocked`: time.monotonic() of the read that first showed it
        self._states_since: dict[tuple[str, str], float] = {}  # by worker and state: time.monotonic() since which every read has shown it
        self._batches_since = 0.0  # time.monotonic() of the read that showed the last newly taken batch

    def look(self, stats: Stats) -> Snapshot:
        """The snapshot of `stats`. In the first snapshot, rates are 0."""
        now = time.monotonic()
        seconds = now - self._at if self._last else 0.0
        if not self._last or stats["store/batches_taken_total"] != self._last.get("store/batches_taken_total"):
            self._batches_since = now
        batches_per_s = self._rate(stats, "store/batches_taken_total", seconds)
        workers = self._workers(stats, seconds, now)
        tables = self._tables(stats, seconds, now)
        lags = [worker.lag for worker in workers if worker.lag is not None]
        stored, capacity = int(stats["store/samples"]), int(stats["store/capacity"])
        snapshot = Snapshot(
            time=time.time(),
            inserts_per_s=self._rate(stats, "store/samples_inserted_total", seconds),
            draws_per_s=sum(table.draws_per_s for table in tables) if tables else batches_per_s * int(stats["store/batch_size"]),
            bytes_per_s=sum(self._rate(stats, key, seconds) for key in stats if key.endswith("/bytes_received")),
            batches_per_s=batches_per_s,
            inserts_total=int(stats["store/samples_inserted_total"]),
            batches_total=int(stats["store/batches_taken_total"]),
            stored=stored,
            capacity=capacity,
            batch_size=int(stats["store/batch_size"]),
            fill=stored / capacity if capacity else 0.0,
            leases_held=int(stats["store/leases_held"]),
            weights_version=int(stats["weights/version"]),
            weights_age_s=float(stats["weights/age_s"]),
            lag_mean=sum(lags) / len(lags) if lags else 0.0,
            lag_max=max(lags, default=0),
            waits=_waits(stats, workers, tables, now - self._batches_since),
            workers=workers,
            tables=tables,
            others={key: value for key, value in stats.items() if key.partition("/")[0] not in GROUPS},
        )
        self._last, self._at = dict(stats), now
        return snapshot

    def _rate(self, stats: Stats, key: str, seconds: float) -> float:
        # A counter that has decreased belongs to a server or worker that was restarted.
        return max(0.0, float(stats.get(key, 0)) - float(self._last.get(key, 0))) / seconds if seconds else 0.0

    def _workers(self, stats: Stats, seconds: float, now: float) -> list[WorkerRow]:
        names = [key[len("worker/") : -len("/state")] for key in stats if key.startswith("worker/") and key.endswith("/state")]
        states = {(name, str(stats[f"worker/{name}/state"])): now - float(stats.get(f"worker/{name}/state_s", 0.0)) for name in names}
        self._states_since = {key: min(began, self._states_since.get(key, began)) for key, began in states.items()}
        return [self._worker(name, stats, seconds, now) for name in names]

    def _worker(self, name: str, stats: Stats, seconds: float, now: float) -> WorkerRow:
        key = f"worker/{name}"
        held = int(stats.get(f"{key}/weights_version", 0))
        state = str(stats[f"{key}/state"])
        return WorkerRow(
            name=name,
            inserted=int(stats.get(f"{key}/samples", 0)),
            inserts_per_s=self._rate(stats, f"{key}/samples", seconds),
            bytes_per_s=self._rate(stats, f"{key}/bytes", seconds),
            weights_version=held,
            lag=max(0, int(stats["weights/version"]) - held) if held else None,
            state=state,
            since=now - self._states_since[name, state],
            waits_for=str(stats.get(f"{key}/waits_for", "")),
        )

    def _tables(self, stats: Stats, seconds: float, now: float) -> list[TableRow]:
        names = [key[len("table/") : -len("/inserts")] for key in stats if key.startswith("table/") and key.endswith("/inserts")]
        held = {(name, str(stats.get(f"table/{name}/blocked", ""))) for name in names}
        self._held_since = {key: self._held_since.get(key, now) for key in held}
        return [self._table(name, stats, seconds, now) for name in names]

    def _table(self, name: str, stats: Stats, seconds: float, now: float) -> TableRow:
        key = f"table/{name}"
        steps = f"{key}/steps_held" in stats
        blocked = str(stats.get(f"{key}/blocked", ""))
        return TableRow(
            name=name,
            size=int(stats[f"{key}/steps_held" if steps else f"{key}/size"]),
            capacity=int(stats[f"{key}/steps_capacity" if steps else f"{key}/capacity"]),
            inserts_per_s=self._rate(stats, f"{key}/inserts", seconds),
            draws_per_s=self._rate(stats, f"{key}/samples", seconds),
            samples_per_insert=float(stats.get(f"{key}/samples_per_insert", 0.0)),
            holds=HOLDS.get(blocked, blocked),
            why=str(stats.get(f"{key}/blocked_by", "")),
            since=now - self._held_since[name, blocked] if blocked else 0.0,
        )


def _waits(stats: Stats, workers: list[WorkerRow], tables: list[TableRow], quiet: float) -> list[str]:
    """Who waits for whom, and since when; the longest wait comes first. Tables say it with the reason of their rate limiter."""
    said: list[tuple[float, str]] = []
    batch, stored = int(stats["store/batch_size"]), int(stats["store/samples"])
    held, buffers = int(stats["store/leases_held"]), int(stats["store/num_buffers"])
    blocked = [worker for worker in workers if worker.state == "waiting for space"]
    hoarded = bool(buffers) and held >= buffers
    said += [(table.since, f"the limiter holds {table.holds}, for {table.since:.1f} s: {table.why}") for table in tables if table.holds != "nobody"]
    for worker in blocked:
        if not any(worker.waits_for and worker.waits_for in table.why for table in tables):  # otherwise the table's line says it
            why = f": {worker.waits_for}" if worker.waits_for else ""
            again = " again and again" if worker.inserts_per_s else ""
            said.append((worker.since, f"{worker.name} waits for space{again}, for {worker.since:.1f} s{why}"))
    for worker in workers:
        if worker.state == "half a message":
            said.append((worker.since, f"the learner waits for the rest of a message of {worker.name}, for {worker.since:.1f} s"))
    taken = f"the last batch was taken {quiet:.0f} s ago or more" if stats["store/batches_taken_total"] else "no batch was taken yet"
    if not tables and not blocked and not hoarded and stored < batch and quiet >= 1:
        newest = int(stats["weights/version"])
        unpublished = [worker for worker in workers if worker.state == "waiting for weights" and worker.weights_version == newest]
        whom = "none is connected" if not workers else f"a batch of {batch} lacks {counted(batch - stored, 'sample')}"
        if unpublished:
            newer = f" newer than version {newest}" if newest else ""
            whom = f"{len(workers)} connected, {len(unpublished)} waiting for weights{newer}; the learner has to call publish()"
        said.append((quiet, f"the learner waits for workers: {whom}; {taken}"))
    return [text for _, text in sorted(said, key=lambda item: -item[0])]
