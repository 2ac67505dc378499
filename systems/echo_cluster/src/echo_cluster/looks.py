"""What a shard says of itself, to commands and to the launcher."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from echo_core import SecurityError
from echo_core.client.observer import Observer

from .members import Member
from .near import address_from_here

__all__ = ["look", "look_at_all"]

OF_TABLES = ("size", "inserts", "samples", "mass", "blocked", "blocked_by", "draws_waiting", "inserts_waiting")
MOST_AT_ONCE = 16


def look(member: Member, timeout: float, token: Any = None) -> dict[str, Any]:
    """What one shard says of itself. It raises nothing, and "error" says why there is no answer: a shard that does not answer is "down", and one that
    lives and does not let this process in, such as for another token, is "refused"."""
    address = address_from_here(member.addresses, member.host)
    row: dict[str, Any] = {"shard": member.name, "address": str(address), "state": "up", "workers": 0, "tables": {}, "error": ""}
    try:
        with Observer(address, timeout=timeout, token=token, name="echoctl cluster status") as observer:
            figures = observer.request("stats", {"workers": False}, timeout)
        workers = int(figures.get("store/active_connections", 0))
    except Exception as error:  # this runs in a thread of its own, where nobody would see it
        return {**row, "state": "refused" if isinstance(error, SecurityError) else "down", "error": str(error)}
    row["workers"] = workers
    for name in [key.split("/")[1] for key in figures if key.startswith("table/") and key.endswith("/size")]:
        row["tables"][name] = {key: figures.get(f"table/{name}/{key}") for key in OF_TABLES}
    return row


def look_at_all(members: list[Member], timeout: float, token: Any = None) -> list[dict[str, Any]]:
    """`look` at several shards at the same time. It uses no executor, because a launched cluster lives until the program exits, and executors take no
    work any more once the main thread has ended."""
    left = deque(enumerate(members))
    rows: dict[int, dict[str, Any]] = {}

    def work() -> None:
        while True:
            try:
                number, member = left.popleft()
            except IndexError:
                return
            rows[number] = look(member, timeout, token)

    threads = [threading.Thread(target=work, name="echo-cluster-look", daemon=True) for _ in range(min(MOST_AT_ONCE, len(members)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [rows[number] for number in range(len(members))]
