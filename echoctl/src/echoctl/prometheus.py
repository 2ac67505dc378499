"""Statistics of a server in Prometheus' text format, and a small HTTP endpoint that serves them. It uses only the standard library.

Names follow Prometheus' guide: base units (seconds, bytes), `_total` for values that only grow, and one name with labels for values of
the same kind: `echo_worker_samples_total{worker="w0"}`, `echo_transport_bytes_received_total{transport="tcp"}`.
"""

from __future__ import annotations

import platform
import re
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from echo_core import __version__
from echo_core.server.statistics.added_stats import GROUPS
from echo_core.wire.peer import STATES

from .http_endpoint import HttpEndpoint, Request
from .meanings import MEANINGS

if TYPE_CHECKING:
    from echo_core import Server

__all__ = ["CONTENT_TYPE", "Exporter", "exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABELS = {"worker": "worker", "relay": "relay", "transport": "transport", "table": "table"}
# Names that end in _count or _total only grow, and so do these, whose names do not show it. Everything else is a gauge.
_GROWS = {
    "samples", "duplicates", "bytes_received", "bytes_sent", "refused", "protocol_errors", "frames", "frames_direct", "acks",
    "weights_sent", "rounds", "bytes",
    "inserts", "deleted", "evicted", "push_blocked", "aborted", "redrawn", "updated", "gone", "drawn_batches", "stale", "acknowledged",
    "episodes", "truncated", "steps", "records_incomplete", "records_refused",
    "killed_workers", "revoked_claims", "moved_batches", "messages", "direct", "shown",
}  # fmt: skip
_UNITS = re.compile(r"units_(inserted|sampled)_")  # an axis follows


def exposition(stats: Mapping[str, float | int | str]) -> str:
    """`Server.stats()` as Prometheus' text format."""
    families: dict[str, tuple[str, list[str]]] = {}
    helps = {"echo_build_info": "1; its labels name the versions that run here"}

    def put(name: str, kind: str, value: Any, labels: Mapping[str, str], suffix: str = "") -> None:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines = families.setdefault(name, (kind, []))[1]
        lines.append(f"{name}{suffix}{{{shown}}} {value}" if shown else f"{name}{suffix} {value}")

    put("echo_build_info", "gauge", 1, {"version": __version__, "python": platform.python_version()})
    for key, value in stats.items():
        known = len(families)
        group, _, rest = key.partition("/")
        labels = {}
        if group in _LABELS:
            label, _, rest = rest.rpartition("/")  # a worker's name may contain slashes
            labels[_LABELS[group]] = label
        if group == "latency":
            _latency(put, rest, value)
        elif group == "worker" and rest == "state":
            for state in STATES:
                put("echo_worker_state", "gauge", int(value == state), {**labels, "state": state})
        elif group == "table" and rest == "blocked":
            for side in ("inserts", "samples"):
                put("echo_table_limiter_holds", "gauge", int(side in str(value).split("+")), {**labels, "side": side})
        elif not isinstance(value, str) and not isinstance(value, bool):
            grows = rest.endswith(("_total", "_count")) or (group in GROUPS and group != "store" and rest in _GROWS)
            grows = grows or (group == "table" and _UNITS.match(rest) is not None)
            base = (
                re.sub(r"_s$", "_seconds", rest.removesuffix("_total").removesuffix("_count"))
                if grows
                else re.sub(r"_s$", "_seconds", rest)
            )
            name = f"echo_{group}_{_legal(base)}" + ("_total" if grows else "")
            put(name, "counter" if grows else "gauge", value, labels)
        if len(families) > known:
            helps[list(families)[-1]] = _meaning(group, rest)
    lines = []
    for name, (kind, samples) in families.items():
        lines += [f"# HELP {name} {helps[name]}", f"# TYPE {name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def _meaning(group: str, figure: str) -> str:
    """The text of a figure's # HELP line."""
    figure = re.sub(r"^lag_\d+$", "lag_<n>", re.sub(r"^lag_\d+_\d+$", "lag_<n>_<m>", re.sub(r"^lane_.*", "lane_<name>", figure)))
    figure = re.sub(r"^units_(inserted_|sampled_)?.*", r"units_\1<axis>", figure)
    if group == "latency" and (found := re.fullmatch(r"(.+)_(count|p50|p90|p99|max)(?:_ns)?", figure)):
        figure = found[1]
    text = MEANINGS.get(f"{group}/{figure}", f"the figure {figure} of {group} in Server.stats()")
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _latency(put: Any, rest: str, value: Any) -> None:
    """Add one latency: `latency/copy_p50_ns` becomes a quantile of the summary `echo_copy_seconds`."""
    found = re.fullmatch(r"(.+)_(count|p50|p90|p99|max)(?:_ns)?", rest)
    if found is None:
        return
    name, figure = f"echo_{_legal(found[1])}_seconds", found[2]
    if figure == "count":
        put(name, "summary", value, {}, "_count")
    elif figure == "max":
        put(f"echo_{_legal(found[1])}_max_seconds", "gauge", value / 1e9, {})
    else:
        put(name, "summary", value / 1e9, {"quantile": f"0.{figure[1:]}".rstrip("0")})


def _legal(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Exporter:
    """Serves `/metrics`, and `/readyz` (200 while clients can connect, else 503), on its own threads until it is closed.

    It has only a weak reference to the server. When the server was dropped, scrapes are answered with 503. On loopback, requests whose
    Host is another machine are answered with 403: they come from a page of another site in this machine's browser.

    Raises:
        OSError: the port cannot be bound; the message names the port and a remedy.
    """

    def __init__(self, server: Server, host: str = "127.0.0.1", port: int = 0) -> None:
        found = weakref.ref(server)

        class Handler(Request):
            def do_GET(self) -> None:
                living = found()
                if not self.asks_for_this_machine():
                    code, body = 403, b"ask for the figures by 127.0.0.1 or localhost\n"
                elif self.path.partition("?")[0] not in ("/", "/metrics", "/readyz"):
                    code, body = 404, b"figures are at /metrics, and whether the server is ready is at /readyz\n"
                elif living is None:
                    code, body = 503, b"the server is gone\n"
                elif self.path.partition("?")[0] == "/readyz":
                    code, body = (200, b"ready\n") if living.ready else (503, b"not ready: not started, draining or closed\n")
                else:
                    code, body = 200, exposition(living.stats()).encode()
                del living
                self.answer(code, body, CONTENT_TYPE)

        self._endpoint = HttpEndpoint(Handler, "metrics", host, port)
        self.url = f"{self._endpoint.url}/metrics"

    def close(self) -> None:
        """Stop serving and free the port. Idempotent."""
        self._endpoint.close()
