"""Echo: everything that flows between the workers and the learners of reinforcement learning, over any transport.

    from echo_core import Client, Server

    server = Server(example, batch_size=32, transport="tcp://127.0.0.1:0").start()
    client = Client(server.address, example)         # usually in another process
    client.send(sample)
    batch, info = server.sample(timeout=10)

`TcpTransport`, `TcpClient` and their like are found among the installed plugins when they are first used, and `Table` and other names of
replay tables in `echo_replay`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. Imported when first used, so that `import echo_core` costs little and a plugin's import of one
# submodule never pulls in the others.
_HOME = {
    "Address": "base.address",
    "CheckpointError": "base.errors",
    "Client": "client.client",
    "ClosedError": "base.errors",
    "ConfigError": "base.errors",
    "ConnectionClosedError": "base.errors",
    "EchoError": "base.errors",
    "EchoTimeoutError": "base.errors",
    "ForkError": "base.errors",
    "HistSnapshot": "store.sample",
    "JobEnded": "base.errors",
    "Later": "wire.later",
    "LeaseError": "base.errors",
    "PluginError": "base.errors",
    "Published": "server.server",
    "Ragged": "spec.ragged_leaf",
    "Sample": "store.sample",
    "SampleInfo": "store.sample",
    "Sampler": "store.sampler",
    "SecurityError": "base.errors",
    "Server": "server.server",
    "Spec": "spec.spec",
    "SpecError": "base.errors",
    "TrajectoryAccumulator": "client.trajectory",
    "Transport": "wire.transport",
    "Weights": "wire.weights",
    "hookimpl": "plugins.hookspecs",
}

# Where each public name of replay tables lives in echo_replay, which may be absent.
_REPLAY = {
    "FrameStack": "steps.items",
    "MinSize": "tables.rate_limiters",
    "NStep": "steps.items",
    "Queue": "tables.rate_limiters",
    "RateLimiter": "tables.rate_limiters",
    "RecordSample": "tables.records.record_sample",
    "RecordTable": "tables.records.record_table",
    "ReplayInfo": "tables.replay_info",
    "ReplayTable": "tables.replay_table",
    "SampleToInsertRatio": "tables.rate_limiters",
    "SamplesPerInsert": "tables.rate_limiters",
    "Sequences": "steps.items",
    "Slices": "steps.items",
    "Stack": "tables.rate_limiters",
    "StepSample": "steps.step_layout",
    "StepTable": "steps.step_table",
    "Steps": "steps.steps",
    "Table": "config.table",
}

if TYPE_CHECKING:  # the same for type checkers, which follow no __getattr__
    from .base.address import Address as Address
    from .client.client import Client as Client
    from echo_replay.tables.records.record_sample import RecordSample as RecordSample
    from echo_replay.tables.records.record_table import RecordTable as RecordTable
    from echo_replay.tables.replay_info import ReplayInfo as ReplayInfo
    from .base.errors import (
        CheckpointError as CheckpointError,
        ClosedError as ClosedError,
        ConfigError as ConfigError,
        ConnectionClosedError as ConnectionClosedError,
        EchoError as EchoError,
        EchoTimeoutError as EchoTimeoutError,
        ForkError as ForkError,
        JobEnded as JobEnded,
        LeaseError as LeaseError,
        PluginError as PluginError,
        SecurityError as SecurityError,
        SpecError as SpecError,
    )
    from .plugins.hookspecs import hookimpl as hookimpl
    from echo_replay.steps.items import FrameStack as FrameStack, NStep as NStep, Sequences as Sequences, Slices as Slices
    from echo_replay.tables.rate_limiters import (
        MinSize as MinSize,
        Queue as Queue,
        RateLimiter as RateLimiter,
        SamplesPerInsert as SamplesPerInsert,
        SampleToInsertRatio as SampleToInsertRatio,
        Stack as Stack,
    )
    from echo_replay.tables.replay_table import ReplayTable as ReplayTable
    from .store.sample import HistSnapshot as HistSnapshot, Sample as Sample, SampleInfo as SampleInfo
    from .store.sampler import Sampler as Sampler
    from .server.server import Published as Published, Server as Server
    from .spec.ragged_leaf import Ragged as Ragged
    from .spec.spec import Spec as Spec
    from echo_replay.steps.step_layout import StepSample as StepSample
    from echo_replay.steps.step_table import StepTable as StepTable
    from echo_replay.steps.steps import Steps as Steps
    from echo_replay.config.table import Table as Table
    from .client.trajectory import TrajectoryAccumulator as TrajectoryAccumulator
    from .wire.later import Later as Later
    from .wire.transport import Transport as Transport
    from .wire.weights import Weights as Weights

__all__ = [*sorted({**_HOME, **_REPLAY}), "get_include"]


def get_include() -> str:
    """The directory of echo_capi.h, for building native plugins."""
    from pathlib import Path

    return str(Path(__file__).parent / "include")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    elif name in _REPLAY:
        from .plugins.replay_package import replay_module

        value = getattr(replay_module(_REPLAY[name], name), name)
    elif name == "capi":
        # PyCapsule_Import("echo_core.capi._table") imports the package and asks for the rest as attributes.
        return import_module(".store.door.capi", __name__)
    elif name.endswith(("Transport", "Client")) and name[0].isupper():
        # TcpTransport, ShmClient, ...: whatever plugin of that name is installed.
        from .plugins import discovery

        kind = "Transport" if name.endswith("Transport") else "Client"
        plugin = name.removesuffix(kind).lower()
        value = discovery.transport_class(plugin) if kind == "Transport" else discovery.client_class(plugin)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
