"""The ten figures of Evochi's server, under its names, in Prometheus' text format, and the HTTP server that has them at /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping

from echoctl.http_endpoint import HttpEndpoint, Request
from echoctl.prometheus import CONTENT_TYPE

__all__ = ["Metrics", "served"]

KINDS = {
    "evaluate": "Seconds until a worker has evaluated its slices.",
    "heartbeat": "Seconds between two heartbeats of a worker.",
    "initialize": "Seconds until a worker has made the first state.",
    "optimize": "Seconds until a worker has optimised its state.",
    "share_state": "Seconds until a worker has shared its state.",
}
OTHERS = {
    "worker_pool_workers_added": ("counter", "The number of workers that have joined."),
    "worker_pool_workers_removed": ("counter", "The number of workers that have left or were removed."),
    "worker_pool_workers": ("gauge", "The number of workers now."),
    "epochs_created": ("counter", "The number of epochs that have begun."),
    "epochs_total_eval_size": ("counter", "The number of individuals that were evaluated."),
}
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds; they are the default of Prometheus' libraries


class Metrics:
    """The durations of tasks are counted here, on one thread.

    Args:
        others: gives the values of the five other figures, by name.
    """

    def __init__(self, others: Callable[[], Mapping[str, float]]) -> None:
        self._others = others
        self._sums = dict.fromkeys(KINDS, 0.0)
        self._buckets = {kind: [0] * (len(_BOUNDS) + 1) for kind in KINDS}

    def observe(self, kind: str, seconds: float) -> None:
        """A task of this kind has taken so long."""
        self._sums[kind] += seconds
        self._buckets[kind][bisect_left(_BOUNDS, seconds)] += 1

    def text(self) -> str:
        """All figures, for a scrape."""
        lines: list[str] = []

        def family(name: str, kind: str, text: str) -> None:
            lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))

        for kind, text in KINDS.items():
            name = f"{kind}_duration_seconds"
            family(name, "histogram", text)
            below = 0
            for bound, number in zip((*map(str, _BOUNDS), "+Inf"), self._buckets[kind]):
                below += number
                lines.append(f'{name}_bucket{{le="{bound.removesuffix(".0")}"}} {below}')
            lines.extend((f"{name}_sum {self._sums[kind]}", f"{name}_count {below}"))
        values = self._others()
        for name, (kind, text) in OTHERS.items():
            family(name, kind, text)
            lines.append(f"{name} {values[name]}")
        return "\n".join(lines) + "\n"


def served(text: Callable[[], str], host: str, port: int) -> HttpEndpoint:
    """Serve `text()` at /metrics, on threads of its own, until the endpoint is closed. Raises OSError if the port cannot be bound."""

    class Handler(Request):
        def do_GET(self) -> None:
            if not self.asks_for_this_machine():
                code, body = 403, "ask for the figures by 127.0.0.1 or localhost\n"
            elif self.path.partition("?")[0] != "/metrics":
                code, body = 404, "the figures are at /metrics\n"
            else:
                code, body = 200, text()
            self.answer(code, body.encode(), CONTENT_TYPE)

    return HttpEndpoint(Handler, "metrics for Evochi's users", host, port)
