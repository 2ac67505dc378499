"""Which weights the clients of a server hold, also those behind servers that pass weights on. The reports of these go up added together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...base.errors import ProtocolError

if TYPE_CHECKING:
    from ...wire.peer import Peer
    from ...wire.weights import PackedWeights

__all__ = ["Receipts", "as_json", "parsed", "path_of", "receipts_of", "relay_stats", "weights_stats"]

Receipts = Mapping[tuple[int, int], int]  # number of clients by (version, digest)

MOST_KINDS = 4096  # different versions in one report


def receipts_of(peers: Iterable[Peer]) -> Receipts:
    """See `Server.receipts`."""
    counts: Counter[tuple[int, int]] = Counter()
    for peer in peers:
        if peer.relayed is not None:
            counts.update(peer.relayed)
        elif peer.weights_version:
            counts[peer.weights_version, peer.weights_digest] += 1
    return dict(counts)


def weights_stats(peers: Iterable[Peer], newest: PackedWeights | None) -> dict[str, float | int | str]:
    """The figures `weights/*` about those who hold the weights."""
    receipts = receipts_of(peers)
    key = None if newest is None else (newest.version, newest.digest)
    return {"weights/holders": sum(receipts.values()), "weights/holders_of_newest": 0 if key is None else receipts.get(key, 0)}


def relay_stats(peer: Peer, newest: PackedWeights | None) -> dict[str, float | int | str]:
    """The figures `relay/<name>/*` of one server that passes the weights on."""
    relayed = peer.relayed or {}
    return {
        f"relay/{peer.name}/weights_version": peer.weights_version,
        f"relay/{peer.name}/weights_digest": f"{peer.weights_digest:016x}",
        f"relay/{peer.name}/holders": sum(relayed.values()),
        f"relay/{peer.name}/holders_of_newest": 0 if newest is None else relayed.get((newest.version, newest.digest), 0),
    }


def as_json(receipts: Receipts) -> list[list[Any]]:
    return [[version, f"{digest:016x}", count] for (version, digest), count in sorted(receipts.items())[-MOST_KINDS:]]


def parsed(rows: Any) -> dict[tuple[int, int], int]:
    """What `as_json` was given. Raises ProtocolError if the rows of a report are malformed."""
    try:
        if not isinstance(rows, list) or len(rows) > MOST_KINDS:
            raise ValueError("it is no list, or too long")
        found = {(version, int(digest, 16)): count for version, digest, count in rows}
        if not all(type(n) is int and 0 <= n < 1 << 63 for (version, _), count in found.items() for n in (version, count)):
            raise ValueError("it has other values than numbers")
        return found
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"a malformed report about weights: {error}") from error


def path_of(value: Any) -> list[list[str]]:
    """The ids and addresses that a source answered. Raises ProtocolError."""
    rows: list[Any] = value if isinstance(value, list) else [None]
    if not all(isinstance(row, list) and len(row) == 2 and all(isinstance(text, str) for text in row) for row in rows):
        raise ProtocolError("a malformed answer about the source of weights; install the same echo-core at both ends")
    return rows
