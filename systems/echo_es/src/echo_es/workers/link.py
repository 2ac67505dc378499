"""The wire side of a `Worker` at an address of Echo."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from echo_core import Client, ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError, Weights
from echo_core.base.address import Address

from .. import state as states
from ..operations import API
from ..search.tasks import Kind
from ..server import EXAMPLE
from .owner import Optimizer, Owner
from .watch import Watch

__all__ = ["EchoLink"]

_log = logging.getLogger("echo.es")
_PARKED = 20.0  # seconds after which a request for a task is sent anew
_PAUSE = 0.1  # seconds between two attempts to reach the server


class EchoLink:
    """One worker's connection to an `ESServer`; see `Worker` for the arguments."""

    def __init__(self, owner: Owner, address: str | Address, *, token: str | None, name: str | None, reconnect: float, experiment: str | None = None) -> None:
        self._owner, self._address, self._token, self._name, self._reconnect = owner, address, token, name, reconnect
        self._wire = ThreadPoolExecutor(1, thread_name_prefix="echo-es-wire")
        self._client: Client | None = None
        self._wanted = experiment  # None: the server's only one
        self._joined: dict[str, Any] = {}  # what the server said about the search
        self._run: str | None = None  # the search that the version belongs to
        self._version: int | None = None
        self._state: Any = None
        self._seen: int | None = None  # the epoch of the merged statistics of observations
        self._watch: Watch | None = None
        self._closed = False

    async def run(self) -> None:
        """Work until it is over or `close` is called. Raises EchoError: the server refuses, or was not reached for `reconnect` seconds."""
        dropped = False  # whether the last task was cancelled
        try:
            await self._do(self._connect)
            await self._join()
            body: dict[str, Any] = {}
            blob = b""
            while True:
                answer, data = await self._request("es/next", body | {"observations": self._seen}, blob)
                body, blob = {}, b""
                if answer["kind"] == "join":
                    await self._join()
                elif answer["kind"] == Kind.STOP:
                    break
                else:
                    body, blob = await self._work(answer, data)
                    dropped = "dropped" in body
        except ClosedError:
            if not self._closed:
                raise
            dropped = True
        finally:
            self._closed = True
            await self._disconnect()
            self._wire.shutdown(wait=False)
        await self._owner.call_stop(dropped)

    async def close(self) -> None:
        """Leave the server. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._disconnect()

    async def _work(self, task: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Do one task. Returns what the next request reports."""
        kind, number, epoch = task["kind"], task["task"], task["epoch"]
        done: dict[str, Any] = {"done": number}
        if kind in (Kind.EVALUATE, Kind.TEST):
            return await self._rewards(task, data)
        owner = self._owner
        if not isinstance(owner, Optimizer):
            raise EchoError(f"the server gave a task of the kind {kind!r}, but this worker only evaluates; derive a class from echo_es.Worker")
        if kind == Kind.WELCOME:
            await self._set(owner.unpack(memoryview(data)), task["version"])
        elif kind == Kind.OPTIMIZE:
            if self._version != epoch:  # else it was given again, because the answer was lost
                await self._set(await owner.call_optimize(epoch, np.frombuffer(data, np.float64).tolist()), epoch)
            done["digest"] = await asyncio.to_thread(lambda: states.digest(owner.pack(self._state)))
        elif kind in (Kind.INITIALIZE, Kind.SHARE):
            if kind == Kind.INITIALIZE:
                await self._set(await owner.call_initialize(), 0)
            await self._request("es/share", {"task": number}, owner.pack(self._state))
            return {}, b""
        else:
            raise EchoError(f"the server gave a task of the unknown kind {kind!r}; install the same echo-es on both sides")
        return done, b""

    async def _rewards(self, task: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Evaluate or test. Returns the report: rewards, and what was seen meanwhile; or that the task is dropped."""
        number, epoch, slices = task["task"], task["epoch"], [slice(*part) for part in task["slices"]]
        dropped = {"done": number, "dropped": True}
        if "weights" in task and not await self._draw_from(task["version"], task["weights"]):
            return dropped, b""  # there are newer parameters, so the epoch is over
        if "observations" in task and self._owner.observations is not None:
            self._owner.observations.replace(data)
            self._seen = task["observations"]
        assert self._watch is not None
        with self._watch.working(number) as cancelled:
            try:
                if task["kind"] == Kind.TEST:
                    rewards = await self._owner.call_test(epoch, data, sum(part.stop - part.start for part in slices))
                else:
                    evaluated = await self._owner.call_evaluate(epoch, slices)
                    slices = [one.slice for one in evaluated]
                    rewards = [reward for one in evaluated for reward in one.rewards]
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if not cancelled.is_set() or (current is not None and current.cancelling()):
                    raise  # somebody else has cancelled this worker
                return dropped, b""
            except Exception as error:
                if not cancelled.is_set():
                    raise
                _log.debug("task %d was cancelled and ended with %r", number, error)
                return dropped, b""
        if cancelled.is_set():
            return dropped, b""
        done = {"done": number, "rewards": len(rewards), "slices": [[part.start, part.stop] for part in slices]}
        seen = b"" if self._owner.observations is None else self._owner.observations.take()
        return done, np.array(rewards, np.float64).tobytes() + seen

    async def _draw_from(self, version: int, number: int) -> bool:
        """Have the parameters of this version, which the weights of this number have. False: there are newer ones already."""
        newer_than = number - 1
        while self._version is None or self._version < version:
            weights = await self._do(self._weights, newer_than)
            tree = weights.params.get(self._joined["experiment"])
            newer_than = weights.version  # if this does not help: a server that was started again has not sent its own yet
            if tree is not None and tree["run"] == self._run:
                await self._set(tree["params"], tree["version"])
        return self._version == version or bool(self._joined["steady"])

    async def _set(self, state: Any, version: int) -> None:
        self._version, self._state = version, state
        await self._owner.changed(state)

    async def _join(self) -> None:
        owner = self._owner
        body = {"api": API, "experiment": self._wanted, "cores": owner.cores, "run": self._run, "version": self._version, "tests": owner.tests}
        answer, _ = await self._request("es/join", body)
        if answer["run"] != self._run:
            self._run, self._version, self._seen = answer["run"], None, None
        self._joined = answer
        owner.joined(answer.get("strategy"), answer.get("noise"))
        owner.welcomed(answer["worker"], answer["population"], answer["max_epochs"])

    async def _request(self, op: str, body: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        answer: tuple[dict[str, Any], bytes] = await self._do(self._send, op, body, blob)
        return answer

    async def _do(self, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._wire, call, *arguments)

    # ---- on the thread of the wire ------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._client = Client(self._address, EXAMPLE, name=self._name, token=self._token)
        self._watch = Watch(self._client, self._owner.cancel)

    def _send(self, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a request until it is answered. It may be sent twice, which does no harm."""
        answer: tuple[dict[str, Any], bytes] = self._until_reached(lambda client: client.request(op, body, blob, _PARKED))
        return answer

    def _weights(self, newer_than: int) -> Weights:
        """Weights with a higher number."""
        weights: Weights = self._until_reached(lambda client: client.weights(_PARKED, newer_than))
        return weights

    def _until_reached(self, call: Callable[[Client], Any]) -> Any:
        lost: float | None = None
        while True:
            if self._closed or self._client is None:
                raise ClosedError("this worker is closed")
            try:
                return call(self._client)
            except EchoTimeoutError:
                lost = None
            except ConnectionClosedError as error:
                lost = time.monotonic() if lost is None else lost
                if self._closed:
                    raise ClosedError("this worker is closed") from None
                if time.monotonic() - lost > self._reconnect:
                    raise
                _log.info("the server is lost (%s); the worker tries again", error)
                time.sleep(_PAUSE)
            except EchoError:
                if self._closed:  # it has left while this request was under way
                    raise ClosedError("this worker is closed") from None
                raise

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if self._watch is not None:
            self._watch.end()
        if client is not None:
            await asyncio.to_thread(_leave, client)


def _leave(client: Client) -> None:
    with contextlib.suppress(Exception):  # the server may be gone already
        client.request("es/leave", {}, timeout=1.0)
    with contextlib.suppress(Exception):
        client.close(1.0)
