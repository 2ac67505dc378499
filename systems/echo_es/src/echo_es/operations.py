"""What clients ask a server for. Workers use `es/join`, `es/next`, `es/share`, `es/watch` and `es/leave`; people use `es/status`.

A worker reports its last task and asks for the next in one request, `es/next`, which is parked until there is something to do. If the
connection is lost it sends the same request again: a report that has arrived before does not count twice, and a task that got lost is given again.

`es/watch` is parked until a task of the worker is cancelled, but for a few seconds at most. Its body names the cancelled task of which the worker
knows, so nothing gets lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core import EchoError, Later, Server, SpecError

from . import state as states
from .arguments import MANY
from .search.tasks import Kind, Member, RefusedError, Task

if TYPE_CHECKING:
    from .experiments.experiment import Experiment

__all__ = ["API", "Operations"]

API = 1  # of these operations; another number is refused
_WATCH = 4.0  # seconds after which es/watch is answered in any case: a client logs what it has waited for longer, and this wait is no trouble


class JoinedWorker:
    """A worker, and the experiment that it has joined.

    Attributes:
        cancelled: the number of its task that was cancelled last. It is 0 if no task was cancelled.
        watch: the parked request of `es/watch`, or None.
        since: the time at which it was parked.
    """

    def __init__(self, experiment: Experiment, member: Member) -> None:
        self.experiment, self.member = experiment, member
        self.cancelled = 0
        self.watch: Later | None = None
        self.since = 0.0


class Operations:
    """Serves the workers of a server's experiments.

    Args:
        experiments: by name.
        server: gets the operations.
    """

    def __init__(self, experiments: Mapping[str, Experiment], server: Server) -> None:
        self._experiments = experiments
        self._joined: dict[str, JoinedWorker] = {}  # by the client's id
        handlers: dict[str, Callable[..., Any]] = {
            "join": self._join,
            "next": self._next,
            "share": self._share,
            "watch": self._watch,
            "leave": self._leave,
        }
        for name, handler in handlers.items():
            server.serve(f"es/{name}", handler)
        server.serve("es/status", self._status, roles=("read", "write"))

    def look(self, connected: set[str]) -> None:
        """Tell the coordinators which workers are not connected, and answer those that have watched for long. Call it several times a second.

        `connected`: the ids of all clients that are.
        """
        now = time.monotonic()
        for id, worker in list(self._joined.items()):
            coordinator = worker.experiment.coordinator
            if worker.watch is not None and now - worker.since > _WATCH:
                self._answer_watch(worker)
            if not coordinator.has(worker.member):
                if self._joined.get(id) is worker:
                    del self._joined[id]
            elif id not in connected:
                coordinator.disconnected(worker.member)

    def working(self, connected: set[str]) -> bool:
        """Whether one of the connected clients is a worker that has not left yet."""
        return any(id in connected and worker.experiment.coordinator.has(worker.member) for id, worker in list(self._joined.items()))

    def cancel(self, member: Member, task: Task) -> None:
        """Tell a worker that nobody needs the result of a task any more."""
        worker = self._joined.get(member.id)
        if worker is not None and worker.member is member:
            worker.cancelled = task.id
            self._answer_watch(worker)

    def _join(self, _: Server, peer: Any, body: dict[str, Any], __: bytes) -> tuple[dict[str, Any], bytes]:
        if body.get("api") != API:
            raise EchoError(f"this server speaks version {API} of es/join, and the worker {body.get('api')}; install the same echo-es on both sides")
        cores, version = body.get("cores"), body.get("version")
        if type(cores) is not int or cores > MANY or not (version is None or type(version) is int):
            raise RefusedError(f"es/join: cores must be an integer up to {MANY}, and version an integer or null, not {cores!r:.80} and {version!r:.80}")
        experiment = self._experiment(body.get("experiment"))
        coordinator = experiment.coordinator
        if (before := self._joined.pop(peer.id, None)) is not None and before.experiment is not experiment:
            before.experiment.coordinator.leave(before.member)
        known = version if body.get("run") == experiment.run else None
        member = coordinator.join(peer.id, cores, name=peer.name, version=known, tests=body.get("tests") is True)
        self._joined[peer.id] = JoinedWorker(experiment, member)
        answer = {
            "worker": member.id,
            "experiment": experiment.name,
            "run": experiment.run,
            "population": coordinator.population,
            "max_epochs": coordinator.max_epochs,
            "steady": coordinator.steady,
        }
        if experiment.optimizing is not None:
            strategy = experiment.optimizing.strategy
            answer |= {"strategy": strategy.describe(), "noise": strategy.noise_digest()}
        return answer, b""

    def _next(self, _: Server, peer: Any, body: dict[str, Any], blob: bytes) -> Any:
        worker = self._worker_of(peer)
        if worker is None:
            return {"kind": "join"}, b""
        later = Later(peer)
        coordinator, member = worker.experiment.coordinator, worker.member
        try:
            if (done := body.get("done")) is not None:
                self._report(worker, _integer("done", done), body, blob)
            later.on_gone(lambda: self._gone(worker, give))

            def give(task: Task) -> bool:
                return later(*_answer(task, worker.experiment, body))

            coordinator.take(member, give)
        except RefusedError:
            if self._worker_of(peer) is None:  # it was removed meanwhile
                return {"kind": "join"}, b""
            raise
        return later

    def _report(self, worker: JoinedWorker, task: int, body: dict[str, Any], blob: bytes) -> None:
        """What a worker says about its task: the rewards, and behind them the statistics of what it has seen."""
        coordinator, member = worker.experiment.coordinator, worker.member
        if body.get("dropped"):
            coordinator.drop(member, task)
            return
        rewards = _integer("rewards", body.get("rewards", len(blob) // 8))
        if not 0 <= 8 * rewards <= len(blob) or ("rewards" not in body and len(blob) % 8):
            raise RefusedError(f"rewards: {len(blob)} bytes are not {rewards} rewards of float64")
        slices = None if body.get("slices") is None else _slices(body["slices"])
        digest = body.get("digest")
        if not (digest is None or isinstance(digest, str)):
            raise RefusedError(f"digest: it must be text, not {digest!r:.80}")
        merge: Callable[[], None] | None = None
        if seen := blob[8 * rewards :]:
            if worker.experiment.observations is None:
                raise RefusedError("observations: this server merges none; give it the shape of one: ESServer(..., observations=(8,))")
            merge = worker.experiment.observations.merging(seen)
        coordinator.report(member, task, np.frombuffer(blob, np.float64, rewards), slices, digest=digest, observed=merge)

    def _share(self, _: Server, peer: Any, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        worker = self._worker_of(peer)
        if worker is None:
            return {"kind": "join"}, b""
        state = bytes(blob)
        try:
            states.check(state)  # another worker that is given it would end
        except SpecError as error:
            worker.experiment.coordinator.refused()
            raise RefusedError(f"es/share: worker {worker.member.name} sent something else than a state, and it does not count: {error}") from None
        outcome = worker.experiment.coordinator.share(worker.member, _integer("task", body.get("task")), state, digest=states.digest(state))
        return {"outcome": outcome.value}, b""

    def _watch(self, _: Server, peer: Any, body: dict[str, Any], __: bytes) -> Any:
        worker = self._worker_of(peer)
        if worker is None:
            return {"kind": "join"}, b""
        known = _integer("cancelled", body.get("cancelled"))
        before, worker.watch, worker.since = worker.watch, (later := Later(peer)), time.monotonic()
        if before is not None:
            before({"cancelled": worker.cancelled})
        if worker.cancelled not in (0, known):  # it is looked at after the request was parked, so a task that is cancelled meanwhile is not missed
            self._answer_watch(worker)
        return later

    @staticmethod
    def _answer_watch(worker: JoinedWorker) -> None:
        watch, worker.watch = worker.watch, None
        if watch is not None:
            watch({"cancelled": worker.cancelled})

    def _leave(self, _: Server, peer: Any, __: dict[str, Any], ___: bytes) -> tuple[dict[str, Any], bytes]:
        worker = self._worker_of(peer)
        if worker is not None:
            worker.experiment.coordinator.leave(worker.member)
        return {}, b""

    def _status(self, _: Server, __: Any, body: dict[str, Any], ___: bytes) -> tuple[dict[str, Any], bytes]:
        name = body.get("experiment")
        chosen = list(self._experiments.values()) if name is None else [self._experiment(name)]
        return {"experiments": [experiment.status() for experiment in chosen]}, b""

    def _gone(self, worker: JoinedWorker, give: Callable[[Task], bool]) -> None:
        if worker.member.give is give:  # it has not asked again over another connection
            worker.experiment.coordinator.disconnected(worker.member)

    def _worker_of(self, peer: Any) -> JoinedWorker | None:
        worker = self._joined.get(peer.id)
        return worker if worker is not None and worker.experiment.coordinator.has(worker.member) else None

    def _experiment(self, name: Any) -> Experiment:
        if name is None and len(self._experiments) == 1:
            return next(iter(self._experiments.values()))
        if not isinstance(name, str) or name not in self._experiments:
            asked = "several experiments, so a worker has to name one" if name is None else f"no experiment {name!r}"
            raise RefusedError(f"experiment: this server has {asked}; it has {', '.join(self._experiments)}")
        return self._experiments[name]


def _answer(task: Task, experiment: Experiment, asked: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The body and the blob that hand a task to a worker.

    `asked`: the worker's request. It names the version of the parameters and the epoch of the merged statistics that the worker has, and the
    answer has only what is newer.
    """
    body: dict[str, Any] = {
        "task": task.id,
        "kind": task.kind.value,
        "epoch": task.epoch,
        "version": task.version,
        "slices": [[part.start, part.stop] for part in task.slices],
    }
    if task.kind in (Kind.WELCOME, Kind.TEST):
        return body, task.state
    if task.kind is not Kind.EVALUATE:
        return body, b"" if task.rewards is None else task.rewards.tobytes()
    blob = b""
    if (newest := experiment.parameters) is not None:
        body["weights"] = newest.weights
        if newest.description is not None and "version" in asked and asked["version"] != newest.version:
            body["params"], blob = newest.description, newest.data
    sent = None if experiment.observations is None else experiment.observations.sent
    if sent is not None and sent[0] != asked.get("observations"):
        body["observations"], blob = sent[0], blob + sent[1]
    return body, blob


def _integer(name: str, value: Any) -> int:
    if type(value) is not int:
        raise RefusedError(f"{name}: it must be a whole number, not {value!r}")
    return value


def _slices(parts: Any) -> list[slice]:
    if not isinstance(parts, list):
        raise RefusedError(f"slices: they must be a list of [start, stop], not {parts!r:.80}")
    return [_slice(part) for part in parts]


def _slice(part: Any) -> slice:
    if not (isinstance(part, list) and len(part) == 2 and all(type(bound) is int for bound in part)):
        raise RefusedError(f"slices: each must be [start, stop], not {part!r:.80}")
    return slice(*part)
