"""The wire side of a `Worker` at an address of Echo."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from echo_core import Client, ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError, JobEnded, Weights
from echo_core.base.address import Address

from .. import state as states
from ..experiments.parameters import received
from ..operations import API
from ..search.tasks import Kind
from ..server import EXAMPLE
from .owner import Optimizer, Owner
from .watch import Watch

__all__ = ["EchoLink"]

_log = logging.getLogger("echo.es")
_PARKED = 20.0  # seconds after which a request for a task is sent anew
_PAUSE = 0.1  # seconds between two attempts to reach the server
_FIRST = 5.0  # seconds for which it tries at least to reach the server at the start
_SAY = 1.0  # seconds after which it says whom it waits for at the start
_LEAVE, _HANG_UP = 0.5, 0.4  # seconds that goodbye takes at most: Ctrl-C waits for it


class EchoLink:
    """One worker's connection to an `ESServer`; see `Worker` for the arguments. It runs on the thread that calls `run`, and so do the owner's functions."""

    def __init__(self, owner: Owner, address: str | Address, *, token: str | None, name: str | None, reconnect: float, experiment: str | None = None) -> None:
        self._owner, self._address, self._token, self._name, self._reconnect = owner, address, token, name, reconnect
        self._client: Client | None = None
        self._wanted = experiment  # None: the server's only one
        self._joined: dict[str, Any] = {}  # what the server said about the search
        self._run: str | None = None  # the search that the version belongs to
        self._version: int | None = None
        self._state: Any = None
        self._seen: int | None = None  # the epoch of the merged statistics of observations
        self._watch: Watch | None = None
        self._closed = False
        self._closing = threading.Lock()

    def run(self) -> None:
        """Work until it is over or `close` is called. Raises EchoError: the server refuses, or was not reached for `reconnect` seconds."""
        dropped = False  # whether the last task was cancelled
        try:
            self._connect()
            self._join()
            body: dict[str, Any] = {}
            blob = b""
            while True:
                answer, data = self._request("es/next", body | {"version": self._version, "observations": self._seen}, blob)
                body, blob = {}, b""
                if answer["kind"] == "join":
                    self._join()
                elif answer["kind"] == Kind.STOP:
                    break
                else:
                    body, blob = self._work(answer, data)
                    dropped = "dropped" in body
        except JobEnded:  # the server has closed, and did not wait for this worker to ask for a task
            dropped = True
        except ClosedError:
            if not self._closed:
                raise
            dropped = True
        finally:
            self.close()
        self._owner.stop(dropped)

    def close(self) -> None:
        """Leave the server, and cancel the present evaluation without waiting for it. Idempotent, from any thread, and over within a second."""
        with self._closing:
            self._closed = True
            client, self._client = self._client, None
        if self._watch is not None:
            self._watch.end()
        if client is not None:
            with contextlib.suppress(EchoError):  # the server may be gone already
                client.request("es/leave", {}, timeout=_LEAVE)
            with contextlib.suppress(EchoError):
                client.close(_HANG_UP)

    def _work(self, task: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Do one task. Returns what the next request reports."""
        kind, number, epoch = task["kind"], task["task"], task["epoch"]
        done: dict[str, Any] = {"done": number}
        if kind in (Kind.EVALUATE, Kind.TEST):
            return self._rewards(task, data)
        owner = self._owner
        if not isinstance(owner, Optimizer):
            raise EchoError(f"the server gave a task of the kind {kind!r}, but this worker only evaluates; derive a class from echo_es.Worker")
        if kind == Kind.WELCOME:
            self._set(owner.unpack(memoryview(data)), task["version"])
        elif kind == Kind.OPTIMIZE:
            if self._version != epoch:  # else it was given again, because the answer was lost
                self._set(owner.optimize(epoch, np.frombuffer(data, np.float64).tolist()), epoch)
            done["digest"] = states.digest(owner.pack(self._state))
        elif kind in (Kind.INITIALIZE, Kind.SHARE):
            if kind == Kind.INITIALIZE:
                self._set(owner.initialize(), 0)
            self._request("es/share", {"task": number}, owner.pack(self._state))
            return {}, b""
        else:
            raise EchoError(f"the server gave a task of the unknown kind {kind!r}; install the same echo-es on both sides")
        return done, b""

    def _rewards(self, task: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Evaluate or test. Returns the report: rewards, and what was seen meanwhile; or that the task is dropped."""
        number, epoch, slices = task["task"], task["epoch"], [slice(*part) for part in task["slices"]]
        dropped = {"done": number, "dropped": True}
        if "params" in task:
            version, params, data = received(task["params"], data)
            self._set(params, version)
        if "weights" in task and not self._draw_from(task["version"], task["weights"]):
            return dropped, b""  # there are newer parameters, so the epoch is over
        if "observations" in task and self._owner.observations is not None:
            self._owner.observations.replace(data)
            self._seen = task["observations"]
        assert self._watch is not None
        with self._watch.working(number) as cancelled:
            try:
                if task["kind"] == Kind.TEST:
                    rewards = self._owner.test(epoch, data, sum(part.stop - part.start for part in slices))
                else:
                    evaluated = self._owner.evaluate(epoch, slices)
                    slices = [one.slice for one in evaluated]
                    rewards = np.concatenate([one.rewards for one in evaluated] or [np.empty(0)])
            except Exception as error:  # of an async evaluation that was cancelled it is concurrent.futures.CancelledError
                if not cancelled.is_set():
                    raise
                _log.debug("task %d was cancelled and ended with %r", number, error)
                return dropped, b""
        if cancelled.is_set():
            return dropped, b""
        done = {"done": number, "rewards": len(rewards), "slices": [[part.start, part.stop] for part in slices]}
        seen = b"" if self._owner.observations is None else self._owner.observations.take()
        return done, rewards.tobytes() + seen

    def _draw_from(self, version: int, number: int) -> bool:
        """Have the parameters of this version, which the weights of this number have. False: there are newer ones already."""
        newer_than = number - 1
        while self._version is None or self._version < version:
            weights = self._weights(newer_than)
            tree = weights.params.get(self._joined["experiment"])
            newer_than = weights.version  # if this does not help: a server that was started again has not sent its own yet
            if tree is not None and tree["run"] == self._run:
                self._set(tree["params"], tree["version"])
        if self._version == version or self._joined["steady"]:
            return True
        # They may be weights of a server that has ended, if its successor goes on from an older copy of the log. With them kept, no task would ever fit.
        self._version = None
        return False

    def _set(self, state: Any, version: int) -> None:
        self._version, self._state = version, state
        self._owner.changed(state)

    def _join(self) -> None:
        owner = self._owner
        body = {"api": API, "experiment": self._wanted, "cores": owner.cores, "run": self._run, "version": self._version, "tests": owner.tests}
        answer, _ = self._request("es/join", body)
        if answer["run"] != self._run:
            self._run, self._version, self._seen = answer["run"], None, None
        if "strategy" in answer:
            self._version = None  # a server that goes on from an older copy of its log has other parameters under the numbers of this worker's
        self._joined = answer
        owner.joined(answer.get("strategy"), answer.get("noise"))
        owner.welcomed(answer["worker"], answer["population"], answer["max_epochs"])

    def _connect(self) -> None:
        patience = max(self._reconnect, _FIRST)
        slow = threading.Timer(_SAY, lambda: _log.warning("there is no server at %s yet; this worker tries for %.0f s to reach it", self._address, patience))
        slow.daemon = True
        slow.start()
        try:
            client = Client(self._address, EXAMPLE, name=self._name, token=self._token, timeout=patience)
        finally:
            slow.cancel()
        with self._closing:
            if not self._closed:
                self._client, self._watch = client, Watch(client, self._owner.cancel)
                return
        client.close(0)
        raise ClosedError("this worker is closed")

    def _request(self, op: str, body: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Send a request until it is answered. It may be sent twice, which does no harm."""
        answer: tuple[dict[str, Any], bytes] = self._until_reached(lambda client: client.request(op, body, blob, _PARKED))
        return answer

    def _weights(self, newer_than: int) -> Weights:
        """Weights with a higher number."""
        weights: Weights = self._until_reached(lambda client: client.weights(_PARKED, newer_than))
        return weights

    def _until_reached(self, call: Callable[[Client], Any]) -> Any:
        lost: float | None = None  # since when
        while True:
            if self._closed or (client := self._client) is None:
                raise ClosedError("this worker is closed")
            try:
                return call(client)
            except EchoTimeoutError:
                lost = None
            except JobEnded:
                raise
            except ConnectionClosedError as error:
                if self._closed:
                    raise ClosedError("this worker is closed") from None
                if lost is None:
                    lost = time.monotonic()
                    if self._reconnect:
                        _log.warning("the server at %s is lost (%s); this worker tries for %.0f s to reach it again", self._address, error, self._reconnect)
                if time.monotonic() - lost > self._reconnect:
                    raise
                time.sleep(_PAUSE)
            except EchoError:
                if self._closed:  # it has left while this request was under way
                    raise ClosedError("this worker is closed") from None
                raise
