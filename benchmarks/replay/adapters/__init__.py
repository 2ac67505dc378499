"""One module per system, imported only in the processes that run it; the order is that of the columns."""

from __future__ import annotations

from benchmarks.replay.adapters.base import System
from benchmarks.systems import Entry

__all__ = ["SYSTEMS", "Entry", "load", "version"]

SYSTEMS: dict[str, Entry] = {
    "echo": Entry("benchmarks.replay.adapters.echo:Echo", ("echo-core", "echo-samplers", "echo-tcp")),
    "echo-remote": Entry("benchmarks.replay.adapters.echo:EchoRemote", ("echo-core", "echo-samplers", "echo-tcp")),
    "cpprb": Entry("benchmarks.replay.adapters.cpprb:Cpprb", ("cpprb",), hint="pip install cpprb"),
    "torchrl": Entry("benchmarks.replay.adapters.torchrl:TorchRL", ("torchrl", "torch"), hint='pip install "torchrl>=0.14" "torch>=2.15"'),
    "reverb": Entry(
        "benchmarks.replay.adapters.reverb:Reverb",
        ("dm-reverb", "psutil"),
        interpreter="BENCH_REVERB_PYTHON",
        hint='it needs Python 3.11: in an environment of its own pip install "dm-reverb==0.14.0" "tensorflow-cpu<2.16" "numpy<2" psutil, '
        "and name its python in BENCH_REVERB_PYTHON",
    ),
    "memcpy": Entry("benchmarks.replay.adapters.memcpy:Memcpy", ("numpy",)),
    "rows": Entry("benchmarks.replay.adapters.rows:Rows", ("numpy", "echo-core", "echo-samplers", "echo-tcp")),
}


def version(name: str) -> str:
    """The installed version of a system; PackageNotFoundError names what is missing of it."""
    return SYSTEMS[name].version()


def load(name: str) -> System:
    """Import and build the adapter called `name`; ImportError when its system is missing."""
    system = SYSTEMS[name].load()
    assert isinstance(system, System)
    return system
