"""What a person sees of the shards: what they say of themselves over Echo, and what their actors say."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from .calls import Call

__all__ = ["shard_rows"]


def shard_rows(asked: list[dict[str, Any]], looks: Sequence[Call], drained: Container[int] = ()) -> list[dict[str, Any]]:
    """One row for each shard.

    Args:
        asked: what `echo_cluster.looks` found over the network.
        looks: the calls of `ShardActor.look`, by number.
        drained: shards that were taken out of service.
    """
    rows = {row["shard"]: row for row in asked}
    found = []
    for number, call in enumerate(looks):
        look, name = call.answer or {}, f"shard-{number}"
        state = look.get("state", "starting")
        row = rows.get(name) or {"shard": name, "address": "", "state": "down", "workers": 0, "tables": {}, "error": ""}
        if number in drained or state not in ("serving", "starting"):
            row |= {"state": "drained" if number in drained else state, "error": look.get("error", "")}
        elif row["state"] != "up" and call.error:
            row["error"] = f"Ray starts it again ({call.error})"
        found.append({**row, "pid": look.get("pid"), "node": look.get("node"), "life": look.get("life")})
    return found
