"""The server's statistics: flat dicts for loggers, and the thread that passes them to observers and to the log."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from ...plugins import discovery
from ..weights.receipts import relay_stats, weights_stats
from .waiting_workers import BlockedWorkers, reason

if TYPE_CHECKING:
    import pluggy

    from ..state import ServerState

__all__ = ["StatsTicker", "as_html", "server_stats"]


def server_stats(server: ServerState) -> dict[str, float | int | str]:
    """`Server.stats()`. Names have the form `group/figure`; latencies are in nanoseconds.

    * `store/*`: the counters of `SampleInfo`.
    * `latency/<histogram>_count` and `_{p50,p90,p99,max}_ns`.
    * `weights/*`: the newest version (0 until weights are published), its age, who holds it, and where it comes from.
    * `relay/<name>/*`: the same of each connected server that passes the weights on, and of the clients behind it.
    * `transport/<scheme>/*`: the counters of each listener.
    * `clients/*`: the memory that clients make the server hold, its limits, and the requests that are answered later.
    * `worker/<name>/*`: samples, bytes, weights_version, weights_digest (hex), state, state_s and waits_for of each connected worker.
    * `table/<name>/*`: the counters of each replay table, samples_per_insert, which side its rate limiter blocks now
      (`blocked`), and why (`blocked_by`).
    * `<prefix>/*`: the figures of `Server.add_stats`.
    """
    c = server._counters()
    out: dict[str, float | int | str] = {
        "store/samples": c["stored"],
        "store/samples_inserted_total": c["inserted"],
        "store/batches_taken_total": c["batches_taken"],
        "store/batches_out_of_order_total": c["batches_out_of_order"],
        "store/leases_held": c["leased"],
        "store/num_buffers": server.num_buffers,
        "store/batch_size": server.batch_size,
        "store/capacity": sum(storage.capacity for storage in server.storages.values()),
        "store/push_blocked_count": c["push_blocked"],
        "store/samples_aborted_total": c["aborted"],
        "store/notify_count": c["notified"],
        "store/queue_depth_sum": c["queued"],
        "store/queue_depth_max": c["queue_depth_max"],
        "store/active_connections": c["connections"],
    }
    for table_name, table in server.tables.items():
        figures = table.stats() | server._of_storages[table_name].stats()
        out.update({f"table/{table_name}/{key}": value for key, value in figures.items()})
    for name, h in server._histograms().items():
        out[f"latency/{name}_count"] = h.count
        for figure in ("p50", "p90", "p99", "max"):
            out[f"latency/{name}_{figure}_ns"] = getattr(h, f"{figure}_ns")
    weights = server._publishing
    out["weights/version"] = weights.version if weights.published_at else 0
    out["weights/age_s"] = time.monotonic() - weights.published_at if weights.published_at else 0.0
    newest, peers = weights.newest, server.peers()
    out.update(weights_stats(peers, newest))
    if server._source is not None:
        out.update({f"weights/{key}": value for key, value in server._source.stats().items()})
    for listener in list(server._listeners):
        scheme = listener.address.scheme
        counters = dict(listener.stats())
        clients = listener.peers()
        if further := len(clients) - len({peer.owner for peer in clients}):  # connections of workers that write into several tables
            counters["active_connections"] -= further
        for key, value in counters.items():  # several listeners of one scheme are added up
            name = f"transport/{scheme}/{key}"
            out[name] = out.get(name, 0) + value  # type: ignore[operator]
    server.held.expire()
    out.update({f"clients/{key}": value for key, value in (server.client_memory.stats() | server._parked.stats()).items()})
    now = time.monotonic()
    for peer in peers:
        if peer.relayed is not None:
            out.update(relay_stats(peer, newest))
        if peer.role != "worker":
            continue
        worker = f"worker/{peer.name}"
        out[f"{worker}/samples"] = peer.samples
        out[f"{worker}/bytes"] = peer.bytes
        out[f"{worker}/weights_version"] = peer.weights_version
        out[f"{worker}/weights_digest"] = f"{peer.weights_digest:016x}"
        out[f"{worker}/state"] = peer.state
        out[f"{worker}/state_s"] = now - peer.state_since
        out[f"{worker}/waits_for"] = reason(server, peer)
    return out | server._added_stats.stats()


def as_html(title: str, stats: Mapping[str, float | int | str]) -> str:
    """Statistics as an HTML table. Everything is escaped, because workers choose their names."""

    def cell(value: float | int | str) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:.3f}" if isinstance(value, float) else escape(value)

    rows = "".join(f"<tr><th style='text-align:left'>{escape(key)}</th><td>{cell(value)}</td></tr>" for key, value in stats.items())
    return f"<details open><summary><code>{escape(title)}</code></summary><table>{rows}</table></details>"


class StatsTicker:
    """A thread that, about once a second, calls the observers' `echo_stats`, logs which workers wait for space, and drops batches that clients
    did not fetch.

    Without observers it sleeps until the next wait could be logged or the next batch dropped, because each wake-up costs an idle server 0.2 ms
    of processor time. It is not started if the server has neither observers nor tables nor transports."""

    INTERVAL = 1.0  # seconds

    def __init__(self, server: ServerState, observers: pluggy.PluginManager) -> None:
        self._server = weakref.ref(server)
        self._observers = observers
        self._blocked = BlockedWorkers()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo-stats", daemon=True)
        self._thread.start()

    @classmethod
    def maybe(cls, server: ServerState, observers: pluggy.PluginManager) -> StatsTicker | None:
        wanted = server.tables or server._listeners or observers.hook.echo_stats.get_hookimpls()
        return cls(server, observers) if wanted else None

    def _run(self) -> None:
        nap = self.INTERVAL
        while not self._stop.wait(nap):
            server = self._server()
            if server is None:
                return
            naps = [server.held.expire(), self._blocked.look(server)]
            if self._observers.hook.echo_stats.get_hookimpls():
                discovery.notify(self._observers, "echo_stats", stats=server_stats(server))
                naps.append(0.0)
            nap = max(self.INTERVAL, min(naps))
            del server

    def stop(self) -> None:
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
