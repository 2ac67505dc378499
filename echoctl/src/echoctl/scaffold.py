"""The files that `echoctl init plugin` makes; @words@ are replaced. Tests generate, install and run these files."""

from __future__ import annotations

__all__ = ["CONTRACTS", "SAMPLER", "SHARED", "TRANSPORT"]

#: The modules whose docstrings are the contracts.
CONTRACTS = {"transport": "echo_core.wire.transport", "sampler": "echo_core.store.sampler"}

SHARED = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "@dist@"
version = "0.1.0"
description = "A @kind@ for Echo"
readme = "README.md"
requires-python = ">=3.11"
dependencies = [@needs@, "numpy>=2.0"]

[project.entry-points."echo.@kind@s"]
@name@ = "echo_@name@"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
echo_@name@ = ["py.typed"]

[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = ["--import-mode=importlib"]
""",
    "README.md": """\
# @dist@

A @kind@ for Echo. Users select it by its name, `@name@`.

    pip install -e .                       # it also needs "@kit@": https://github.com/echo-rl/echo/blob/main/docs/install.md
    python -m pytest                       # the conformance kit: the whole contract of a @kind@
    echoctl plugins check @dist@
    echoctl plugins show @name@

The docstrings of `@contract@` are the contract.
""",
    "src/echo_@name@/py.typed": "",
}

TRANSPORT = {
    "src/echo_@name@/__init__.py": '''\
"""A transport for Echo. Echo imports this module to list plugins, so it must not import heavy modules."""

from __future__ import annotations

from echo_core.plugins.hookspecs import TransportInfo, hookimpl


@hookimpl
def echo_transports() -> list[TransportInfo]:
    # `echoctl plugins list` shows the summary.
    return [TransportInfo("@name@", "echo_@name@.transport:@Name@Transport", api=@api@, summary="unix-domain sockets")]
''',
    "src/echo_@name@/transport.py": '''\
"""A transport over unix-domain sockets. Replace them by your own way to send bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_core.base.address import Address
from echo_core.base.transport_options import ListenOptions
from echo_net.channel import Acceptor, Channel, ChannelTransport


class @Name@Channel(Channel):
    """One connection. One thread sends while another receives. The calls block, so it needs neither select nor timeouts."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.peer = "a process of this machine"

    def send(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        for buffer in buffers:
            self._sock.sendall(buffer)

    def recv_into(self, buffer: memoryview) -> int:
        return self._sock.recv_into(buffer)

    def shutdown(self) -> None:  # wakes the two calls above, from any thread
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


class @Name@Acceptor(Acceptor):
    def __init__(self, path: str) -> None:
        self.address = Address("@name@", path=path)
        self._sock = socket.socket(socket.AF_UNIX)
        try:
            if _is_stale(path):
                os.unlink(path)
            self._sock.bind(path)
            os.chmod(path, 0o600)  # before listen(), so that it is never open to other users
            self._sock.listen(128)
        except OSError as error:
            self._sock.close()
            raise OSError(error.errno, f"cannot listen at {self.address}: {error.strerror}") from error

    def accept(self) -> Channel:
        return @Name@Channel(self._sock.accept()[0])

    def shutdown(self) -> None:  # wakes accept()
        self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()
        os.unlink(self.address.path)


def _is_stale(path: str) -> bool:
    """True for a socket file whose learner was killed, so that no process listens there any more."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False


@dataclass(frozen=True, kw_only=True)
class @Name@Options(ListenOptions):
    path: Path  # the path of the socket file


class @Name@Transport(ChannelTransport):
    scheme = "@name@"
    Options = @Name@Options

    def bind(self) -> Acceptor:
        return @Name@Acceptor(str(self.options.path))

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(timeout)
            sock.connect(address.path)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return @Name@Channel(sock)
''',
    "tests/test_contract.py": '''\
"""Tests that @dist@ fulfils the contract of `echo_core.wire.transport`."""

from __future__ import annotations

from typing import Any

from echo_@name@.transport import @Name@Transport

from echo_testing import TransportContract


class Test@Name@(TransportContract):
    def transport(self, **options: Any) -> @Name@Transport:
        # It must be able to listen now, in addition to any others.
        return @Name@Transport(path=self.scratch / f"{self.unique()}.sock", **options)
''',
}

SAMPLER = {
    "src/echo_@name@/__init__.py": '''\
"""A sampler for Echo. Echo imports this module to list plugins, so it must not import heavy modules."""

from __future__ import annotations

from echo_core.plugins.hookspecs import SamplerInfo, hookimpl


@hookimpl
def echo_samplers() -> list[SamplerInfo]:
    # `echoctl plugins list` shows the summary.
    return [SamplerInfo("@name@", "echo_@name@.sampler:@Name@Sampler", api=@api@, summary="every sample equally likely")]
''',
    "src/echo_@name@/sampler.py": '''\
"""A sampler that draws every held sample with equal probability. Replace the draw by your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from echo_core.store.sampler import Keys, Priorities, Sampler, check_held, check_new, check_priorities


class @Name@Sampler(Sampler):
    """Draws uniformly, with replacement. Inserting, deleting and drawing n keys cost O(n)."""

    storage = "replay"
    replacement = True

    @dataclass(frozen=True)
    class Options:
        capacity: int  # samples that the table holds

        def __post_init__(self) -> None:
            if self.capacity < 1:
                raise ValueError(f"capacity must be at least 1, not {self.capacity}")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._keys: list[int] = []  # in any order: the last key replaces a deleted one
        self._place: dict[int, int] = {}  # the index of each key in the list

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        new = check_new(keys, self._place)  # everything is checked before anything is changed
        if priorities is not None:
            check_priorities(priorities, keys)
        for key in new:
            self._place[key] = len(self._keys)
            self._keys.append(key)

    def delete(self, keys: Keys) -> None:
        for key in check_held(keys, self._place, once=True):
            place, last = self._place.pop(key), self._keys.pop()
            if last != key:
                self._keys[place] = last
                self._place[last] = place

    def update(self, keys: Keys, priorities: Priorities) -> None:
        check_held(keys, self._place)
        check_priorities(priorities, keys)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        held = len(self._keys)
        if n < 1 or not held:
            raise ValueError(f"{n} keys were requested, but {held} are held")
        drawn = [self._keys[i] for i in rng.integers(held, size=n)]
        return np.array(drawn, np.uint64), np.full(n, 1 / held)

    def __len__(self) -> int:
        return len(self._keys)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        return {"keys": np.array(self._keys, np.uint64)}

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        if set(state) != {"keys"}:
            raise ValueError(f"the state of a @Name@Sampler is one array 'keys', not {sorted(state)}")
        self._keys = check_new(state["keys"], ())
        self._place = {key: place for place, key in enumerate(self._keys)}
''',
    "tests/test_contract.py": '''\
"""Tests that @dist@ fulfils the contract of `echo_core.store.sampler`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echo_@name@.sampler import @Name@Sampler

from echo_testing import SamplerContract


class Test@Name@(SamplerContract):
    def sampler(self, **options: Any) -> @Name@Sampler:
        return @Name@Sampler(**{"capacity": 1000, **options})

    def probabilities(self, priorities: Sequence[float]) -> Sequence[float]:
        return [1 / len(priorities)] * len(priorities)
''',
}
