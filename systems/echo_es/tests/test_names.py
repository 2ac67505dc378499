"""A class that derives from `Worker` may use every name for itself, except those of Evochi's interface."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from echo_es import ESServer, Eval, Worker

pytestmark = pytest.mark.needs("echo-tcp")

INTERFACE = {"initialize", "evaluate", "optimize", "on_stop", "on_state_change", "start", "close", "cores", "id", "population_size", "max_epochs", "state"}
OURS = {"on_test"}

# What people name things, and what this class has named things itself.
TAKEN = [
    "pack",
    "unpack",
    "changed",
    "joined",
    "welcomed",
    "cancel",
    "cancelled",
    "test",
    "tests",
    "observations",
    "hooks",
    "link",
    "loop",
    "thread",
    "name",
    "token",
    "reconnect",
    "experiment",
    "codec",
    "run",
    "stop",
    "call_initialize",
    "call_evaluate",
    "call_test",
    "call_optimize",
    "call_stop",
    "_call",
    "_cancellable",
    "_known",
    "_state",
    "_id",
    "_population",
    "_max_epochs",
    "_has_state",
    "_state_type",
    "_evaluating",
    "_hooks",
    "_link",
    "_cores",
    "_channel",
    "_client",
]


class Plain(Worker[dict[str, float]]):
    """Counts epochs."""

    def initialize(self) -> dict[str, float]:
        return {"epochs": 0.0}

    def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        return Eval.from_flat(slices, [1.0] * sum(part.stop - part.start for part in slices))

    def optimize(self, epoch: int, rewards: list[float]) -> dict[str, float]:
        return {"epochs": self.state["epochs"] + 1}


def searched(worker: type[Worker[Any]]) -> Any:
    with ESServer(4, "tcp://127.0.0.1:0", max_epochs=3) as server:
        made = worker(str(server.address), 4)
        asyncio.run(made.start())
        assert server.state() == {"epochs": 3.0}
    return made


def test_the_names_of_a_worker_are_those_of_the_interface() -> None:
    public = {name for name in dir(Worker) if not name.startswith("_")} | {"cores"}
    assert public == INTERFACE | OURS
    private = {
        name for name in (*vars(Worker), *vars(Plain("tcp://127.0.0.1:9", 1))) if name.startswith("_") and not name.startswith(("__", "_Worker__", "_abc_"))
    }
    assert private <= {"_is_protocol"}


def test_attributes_of_any_name() -> None:
    class Named(Plain):
        def __init__(self, channel: str, cores: int) -> None:
            for name in TAKEN:
                setattr(self, name, ("mine", name))
            super().__init__(channel, cores)
            for name in TAKEN:
                setattr(self, name, ("mine", name))

    worker = searched(Named)
    assert {name: getattr(worker, name) for name in TAKEN} == {name: ("mine", name) for name in TAKEN}


def test_methods_of_any_name() -> None:
    called: list[str] = []
    methods = {name: lambda *_, name=name, **__: called.append(name) for name in TAKEN}
    searched(type("Named", (Plain,), methods))
    assert called == []


def test_a_class_that_forgets_the_constructor_is_told_so() -> None:
    class Forgetful(Plain):
        def __init__(self) -> None: ...

    with pytest.raises(RuntimeError, match=r"call super\(\).__init__\(channel, cores\)"):
        asyncio.run(Forgetful().start())
