"""What a shard says of itself, to commands and to the launcher."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from echo_core import EchoError
from echo_core.client.observer import Observer

from .members import Member
from .near import address_from_here

__all__ = ["look", "look_at_all"]

OF_TABLES = ("size", "inserts", "samples", "mass", "blocked", "blocked_by", "draws_waiting", "inserts_waiting")
MOST_AT_ONCE = 16


def look(member: Member, timeout: float, token: Any = None) -> dict[str, Any]:
    """What one shard says of itself. It raises nothing: a shard that does not answer is "down", and "error" says why."""
    address = address_from_here(member.addresses, member.host)
    row: dict[str, Any] = {"shard": member.name, "address": str(address), "state": "up", "workers": 0, "tables": {}, "error": ""}
    try:
        with Observer(address, timeout=timeout, token=token, name="echoctl cluster status") as observer:
            figures = observer.request("stats", {"workers": False}, timeout)
    except (EchoError, OSError) as error:
        return {**row, "state": "down", "error": str(error)}
    row["workers"] = int(figures.get("store/active_connections", 0))
    for name in [key.split("/")[1] for key in figures if key.startswith("table/") and key.endswith("/size")]:
        row["tables"][name] = {key: figures.get(f"table/{name}/{key}") for key in OF_TABLES}
    return row


def look_at_all(members: list[Member], timeout: float, token: Any = None) -> list[dict[str, Any]]:
    """`look` at several shards at the same time."""
    if not members:
        return []
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(members)), "echo-cluster-look") as pool:
        return list(pool.map(lambda member: look(member, timeout, token), members))
