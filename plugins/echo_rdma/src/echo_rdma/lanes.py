"""The lanes that UCX chooses between two ends: which they are, whether they are RDMA, and if not, why. Each choice is logged once and remembered."""

from __future__ import annotations

import logging
import os

from . import _ucx, library

__all__ = ["allowed", "chosen", "is_rdma", "note", "of", "receiver_reads", "told", "why_no_rdma"]

log = logging.getLogger("echo")

RDMA = ("rc", "dc", "ud")  # the names of UCX transports on InfiniBand and RoCE begin so
READING = ("rc", "dc", "cma", "xpmem", "knem")  # lanes by which a receiver can read a sender's memory
READ = library.RELIED_ON["RNDV_SCHEME"]
NAMES_LANES = (1, 15)  # an older UCX crashes on this query
UNNAMED = "lanes it does not name"

chosen: dict[tuple[str, ...], str] = {}  # the lanes of this process's connections: their kind, and the reason


def is_rdma(lane: str) -> bool:
    return lane.partition("/")[0].split("_")[0] in RDMA


def allowed() -> tuple[str, ...]:
    """For a UCX that cannot report the lanes of an endpoint: the transports that UCX_TLS allows, if all of them are RDMA."""
    names = [name for name in os.environ.get("UCX_TLS", "").split(",") if name]
    return tuple(names) if all(map(is_rdma, names)) else ()


def of(wire: _ucx.Wire) -> tuple[str, ...]:
    """The lanes that carry a connection. Call it after something was received."""
    if library.ucx()[1] < NAMES_LANES:
        return allowed()
    names = dict.fromkeys(wire.lanes())
    # The lane of the connection's set-up has no device. It is left out if another lane of the same transport has one.
    return tuple(name for name in names if not (name.endswith("/") and any(other != name and other.startswith(name) for other in names)))


def receiver_reads(lanes: tuple[str, ...]) -> bool:
    """Whether the receiver of a large message reads the sender's memory itself. Only then can a stopped sender neither hold a slot nor write into
    one after it was given up. False if the user has set UCX otherwise."""
    return os.environ.get("UCX_RNDV_SCHEME", READ) == READ and any(lane.startswith(READING) for lane in lanes)


def why_no_rdma() -> str:
    """Why UCX uses no network card on this machine, as far as can be known without the other end."""
    cards, tls = library.cards(), os.environ.get("UCX_TLS", "")
    if not cards:
        return "this machine has no RDMA device (/sys/class/infiniband is empty)"
    if not any("ACTIVE" in card for card in cards):
        return f"no port is active: {', '.join(cards)}"
    if library.is_of_wheel():
        return "the UCX of the wheel has no network cards; install the system's"
    names = tls.lstrip("^").split(",")
    if tls and "all" not in names and tls.startswith("^") == any(map(is_rdma, names)):
        return f"UCX_TLS={tls} leaves none"
    return "UCX found no such lane between these two ends, though this one could: see the other, its address and UCX_NET_DEVICES"


def note(peer: str, lanes: tuple[str, ...]) -> None:
    """Log each choice of UCX once; as a warning if it is not RDMA."""
    if lanes in chosen:
        return
    rdma = any(map(is_rdma, lanes))
    chosen[lanes] = "RDMA" if rdma else f"no RDMA: {why_no_rdma()}"
    path, version = library.ucx()
    settings = library.settings_shown() or "no UCX_* variable is set"
    remedy = "" if rdma else " (require_rdma=True would refuse this)"
    level = logging.INFO if rdma else logging.WARNING
    log.log(level, "%s by UCX %s over %s, %s%s; %s; %s", peer, ".".join(map(str, version)), ", ".join(lanes) or UNNAMED, chosen[lanes], remedy, settings, path)
    if rdma and (advice := library.memory_lock_advice()):
        log.warning("%s: %s", peer, advice)


def told() -> str:
    """The lanes of this process's connections and, if they are not RDMA, the reason."""
    if chosen:
        return "; ".join(f"{', '.join(names) or UNNAMED}: {what}" for names, what in chosen.items())
    if library.cards() and not library.is_of_wheel():
        return "none yet, chosen with the first connection"
    return f"none yet; they will be no RDMA: {why_no_rdma()}"
