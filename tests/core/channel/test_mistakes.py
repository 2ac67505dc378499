"""Mistakes in a transport's own code: what its author forgot is named at once."""

from __future__ import annotations

from typing import Any

import pytest
from local_net import LocalTransport, connect, serve

from echo_core import Server
from echo_core.base.address import Address
from echo_core.base.errors import PluginError
from echo_core.testing.samples import example
from echo_core.wire.channel import Acceptor, Channel

pytestmark = pytest.mark.needs("echo-samplers")


class Nameless(Acceptor):
    def accept(self) -> Channel: ...
    def shutdown(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (None, r"bind\(\) returned None, which is no Acceptor; end it with: return YourAcceptor"),
        (Nameless(), r"Nameless has no address; set self.address, with the actual port, in its __init__"),
    ],
)
def test_a_bind_that_returns_nothing_of_use(bound: Any, said: str) -> None:
    class Forgetful(LocalTransport):
        def bind(self) -> Any:
            return bound

    with pytest.raises(PluginError, match=said):
        Server(example(), 2, Forgetful()).start()


def test_a_dial_that_returns_nothing() -> None:
    class Forgetful(LocalTransport):
        @classmethod
        def dial(cls, address: Address, options: Any, timeout: float) -> Any: ...

    with serve() as server:
        with pytest.raises(PluginError, match=r"local://learner: dial\(\) returned None, which is no Channel; end it with: return YourChannel"):
            Forgetful.connect(server.address, server.spec, timeout=10.0)
        connect().close()
