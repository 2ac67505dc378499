"""The Ray actor of one shard: a server that comes back with its checkpoint, at its old port, when Ray starts the actor again."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import ray

from echo_cluster import serve_shard
from echo_cluster.launching.plan import Plan
from echo_cluster.members import find_members
from echo_cluster.near import host_id
from echo_core import EchoError, Server
from echo_core.base.errors import ListenError

__all__ = ["ShardActor", "folder_of", "remove_empty"]

_log = logging.getLogger("echo")

DRAIN_SECONDS = 10.0


def folder_of(name: str, mark: str) -> Path:
    """The folder of a cluster on a node: where its shards of this node announce themselves, and their checkpoints if no other place is given."""
    return Path(tempfile.gettempdir(), f"echo-ray-{name}-{mark}")


def remove_empty(folder: Path) -> None:
    """Remove a folder, and then its parent, unless another shard or other workers of this machine have something there."""
    for one in (folder, folder.parent):
        try:
            one.rmdir()
        except OSError:
            return


class ShardActor:
    """One server, in an actor of Ray. Calls come from the driver and from `connect`; samples never do.

    Args:
        plan: of the cluster, with its token. Ray keeps the arguments of an actor in its control store.
        number: of the shard.
        mark: tells this cluster from earlier ones of the same name.
    """

    def __init__(self, plan: Plan, number: int, mark: str) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
        self._plan, self._number = plan, number
        self._folder = folder_of(plan.name, mark)
        self._shm = f"shm://echo-ray-{plan.name}-{mark}-{number}"
        self._life = secrets.token_hex(8)
        self._asked: dict[str, Any] = {}
        self._server: Server | None = None
        self._state, self._error = "starting", ""
        self._started = threading.Event()
        self._serving = threading.Thread(target=self._serve, name="echo-ray-shard", daemon=True)
        self._serving.start()

    def _serve(self) -> None:
        node = ray.util.get_node_ip_address()
        fresh = self._plan.listen.replace("{node}", f"[{node}]" if ":" in node else node)
        try:
            for listen in (self._former(), fresh):
                if listen is None:
                    continue
                try:
                    self._serve_at([listen, self._shm])
                    break
                except ListenError as error:
                    if listen == fresh:
                        raise
                    _log.warning("shard %d cannot have its old address, and takes another one: %s", self._number, error)
            self._state = "drained" if self._state == "draining" else "ended"
        except (EchoError, OSError, ValueError) as error:
            self._state, self._error = "failed", f"{type(error).__name__}: {error}"
            _log.error("shard %d cannot serve: %s", self._number, error)
        finally:
            self._started.set()

    def _serve_at(self, transports: list[str]) -> None:
        plan = self._plan
        self._server = plan.make_server(transports)
        checkpoints = self._folder if plan.checkpoint is None else plan.checkpoint
        self._state = "serving"
        self._started.set()
        serve_shard(
            self._server,
            folder=self._folder / "shards",
            number=self._number,
            checkpoint=checkpoints / f"checkpoint-{self._number}",
            checkpoint_every=plan.checkpoint_every,
            drain=DRAIN_SECONDS,
        )

    def _former(self) -> str | None:
        """The address over the network at which this shard listened on this node before it was killed; None if there was none."""
        try:
            members = {member.name: member for member in find_members(f"file://{self._folder / 'shards'}")()}
        except EchoError:
            return None
        former = members.get(f"shard-{self._number}")
        return None if former is None else next((str(address) for address in former.addresses if address.host), None)

    def plan(self) -> Plan:
        """For `connect`."""
        return self._plan

    def look(self) -> dict[str, Any]:
        """Where this shard is, and how: "starting", "serving", "draining", "drained", "ended" or "failed"."""
        server, state = self._server, self._state
        up = server is not None and server.ready
        return {
            "addresses": [str(address) for address in server.addresses] if server is not None and up else [],
            "host": host_id(),
            "node": ray.get_runtime_context().get_node_id(),
            "life": self._life,
            "pid": os.getpid(),
            "state": "starting" if state == "serving" and not up else state,
            "error": self._error,
            "asked": self._asked,
        }

    def ask(self, wish: dict[str, Any]) -> None:
        """Note what somebody who is connected wants of the driver, which reads it by `look`."""
        self._asked = wish

    def drain(self) -> None:
        """Take this shard out of service, and return when its checkpoint is written."""
        self._started.wait()
        server = self._server
        if server is not None and self._state == "serving":
            self._state = "draining"
            server.drain(DRAIN_SECONDS)
        self._serving.join()

    def stop(self) -> None:
        """Drain, and remove the files of this node that nobody needs any more."""
        self.drain()
        shutil.rmtree(self._folder / f"checkpoint-{self._number}", ignore_errors=True)  # elsewhere if the plan names a folder; that one stays
        (self._folder / "shards" / f"shard-{self._number}").unlink(missing_ok=True)
        remove_empty(self._folder / "shards")
