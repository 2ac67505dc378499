"""Plugins with options of their own, and files to read: what a configuration is about."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_core.plugins.discovery import SAMPLERS, TRANSPORTS

Install = Callable[..., None]
sys.path.insert(0, str(Path(__file__).parent))  # for `config_errors`

PLUGINS = """
from dataclasses import dataclass, field
from typing import Literal
from echo_core.plugins.hookspecs import SamplerInfo, TransportInfo, hookimpl
from echo_core.store.sampler import Sampler
from echo_core.wire.transport import ConnectOptions, ListenOptions, Transport

@hookimpl
def echo_transports():
    return [TransportInfo(name, f"fake_plugins:{name.title()}") for name in ("way", "path")]

@hookimpl
def echo_samplers():
    return [SamplerInfo("fifo", "fake_plugins:Draw"), SamplerInfo("draw", "fake_plugins:Draw")]

@dataclass(frozen=True)
class Tls:
    cert: str
    check: bool = True

class Way(Transport):
    scheme = "way"

    @dataclass(frozen=True, kw_only=True)
    class Options(ListenOptions):
        host: str = "127.0.0.1"
        port: int = 0
        threads: int = 1
        mode: Literal["fast", "safe"] = "safe"
        allow_insecure: bool = False
        tls: Tls | None = None

        def __post_init__(self):
            if self.threads < 1:
                raise ValueError(f"threads must be at least 1, not {self.threads}")

    @dataclass(frozen=True, kw_only=True)
    class ConnectOptions(ConnectOptions):
        window: int = 64

    def listen(self, sink): ...
    @classmethod
    def connect(cls, address, spec, **options): ...

class Path(Way):
    scheme = "path"

    @dataclass(frozen=True, kw_only=True)
    class Options(ListenOptions):
        path: str
        token: str | bytes | None = field(default=None, repr=False)

class Draw(Sampler):
    storage = "replay"

    @dataclass(frozen=True)
    class Options:
        capacity: int = 10
        alpha: float = 0.5

    def insert(self, keys, priorities=None): ...
    def delete(self, keys): ...
    def update(self, keys, priorities): ...
    def sample(self, n, rng): ...
    def __len__(self): return 0
    def state(self): return {}
    def restore(self, state): ...
"""


@pytest.fixture
def fakes(install: Install) -> None:
    """Transports `way` and `path`, samplers `fifo` and `draw`."""
    names = {"way": "fake_plugins", "path": "fake_plugins"}
    install("echo-way", "0.1", TRANSPORTS, names, fake_plugins=PLUGINS)
    install("echo-draw", "0.1", SAMPLERS, {"fifo": "fake_plugins", "draw": "fake_plugins"})


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """`write("a.toml", text)` in the working directory; returns the name."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        Path(name).write_text(text)
        return name

    return write
