"""Echo: everything that flows between the workers and the learners of reinforcement learning, over any transport.

    from echo_core import Client, Server

    server = Server(example, batch_size=32, transport="tcp://127.0.0.1:0").start()
    client = Client(server.address, example)         # usually in another process
    client.send(sample)
    batch, info = server.sample(timeout=10)

`TcpTransport`, `TcpClient` and their like are found among the installed plugins when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. Imported when first used, so that `import echo_core` costs little and a plugin's import of one
# submodule never pulls in the others.
_HOME = {
    "Address": "address",
    "CheckpointError": "errors",
    "Client": "client",
    "ClosedError": "errors",
    "ConfigError": "errors",
    "ConnectionClosedError": "errors",
    "EchoError": "errors",
    "EchoTimeoutError": "errors",
    "ForkError": "errors",
    "FrameStack": "items",
    "HistSnapshot": "sample",
    "LeaseError": "errors",
    "PluginError": "errors",
    "MinSize": "rate_limiters",
    "NStep": "items",
    "Published": "server",
    "Queue": "rate_limiters",
    "RateLimiter": "rate_limiters",
    "ReplayInfo": "drawn",
    "ReplayTable": "replay_table",
    "Sample": "sample",
    "SampleInfo": "sample",
    "SampleToInsertRatio": "rate_limiters",
    "Sampler": "sampler",
    "SamplesPerInsert": "rate_limiters",
    "SecurityError": "errors",
    "Sequences": "items",
    "Server": "server",
    "Slices": "items",
    "Spec": "spec",
    "SpecError": "errors",
    "Stack": "rate_limiters",
    "StepSample": "step_layout",
    "StepTable": "step_table",
    "Steps": "steps",
    "Table": "table",
    "TrajectoryAccumulator": "trajectory",
    "Transport": "transport",
    "Weights": "weights",
    "hookimpl": "hookspecs",
}

if TYPE_CHECKING:  # the same for type checkers, which follow no __getattr__
    from .address import Address as Address
    from .client import Client as Client
    from .drawn import ReplayInfo as ReplayInfo
    from .errors import (
        CheckpointError as CheckpointError,
        ClosedError as ClosedError,
        ConfigError as ConfigError,
        ConnectionClosedError as ConnectionClosedError,
        EchoError as EchoError,
        EchoTimeoutError as EchoTimeoutError,
        ForkError as ForkError,
        LeaseError as LeaseError,
        PluginError as PluginError,
        SecurityError as SecurityError,
        SpecError as SpecError,
    )
    from .hookspecs import hookimpl as hookimpl
    from .items import FrameStack as FrameStack, NStep as NStep, Sequences as Sequences, Slices as Slices
    from .rate_limiters import (
        MinSize as MinSize,
        Queue as Queue,
        RateLimiter as RateLimiter,
        SamplesPerInsert as SamplesPerInsert,
        SampleToInsertRatio as SampleToInsertRatio,
        Stack as Stack,
    )
    from .replay_table import ReplayTable as ReplayTable
    from .sample import HistSnapshot as HistSnapshot, Sample as Sample, SampleInfo as SampleInfo
    from .sampler import Sampler as Sampler
    from .server import Published as Published, Server as Server
    from .spec import Spec as Spec
    from .step_layout import StepSample as StepSample
    from .step_table import StepTable as StepTable
    from .steps import Steps as Steps
    from .table import Table as Table
    from .trajectory import TrajectoryAccumulator as TrajectoryAccumulator
    from .transport import Transport as Transport
    from .weights import Weights as Weights

__all__ = [*sorted(_HOME), "get_include"]


def get_include() -> str:
    """The directory of echo_capi.h, for building native plugins."""
    from pathlib import Path

    return str(Path(__file__).parent / "include")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    elif name == "capi":
        # PyCapsule_Import("echo_core.capi._table") imports the package and asks for the rest as attributes.
        return import_module(".capi", __name__)
    elif name.endswith(("Transport", "Client")) and name[0].isupper():
        # TcpTransport, ShmClient, ...: whatever plugin of that name is installed.
        from . import plugins

        kind = "Transport" if name.endswith("Transport") else "Client"
        plugin = name.removesuffix(kind).lower()
        value = plugins.transport_class(plugin) if kind == "Transport" else plugins.client_class(plugin)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
