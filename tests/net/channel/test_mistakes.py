"""Mistakes in a transport's own code: what its author forgot is named at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from local_net import LocalAcceptor, LocalTransport, connect, net, serve

from echo_core import Client, Server
from echo_core.base.address import Address
from echo_core.base.errors import PluginError
from echo_core.client.observer import Observer
from echo_core.plugins import discovery
from echo_core.wire.transport import Listener
from echo_net.channel import Acceptor, Channel
from echo_testing.processes import until
from echo_testing.samples import example

pytestmark = pytest.mark.needs("echo-samplers")


class Nameless(Acceptor):
    def accept(self) -> Channel: ...
    def shutdown(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (None, r"transport 'local': bind\(\) returned None, which is no Acceptor; end it with: return YourAcceptor"),
        (Nameless(), r"transport 'local': Nameless has no address; set self.address, with the actual port, in its __init__"),
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


@pytest.mark.parametrize("returned", [None, "local://learner"])
def test_a_listen_that_returns_no_listener(returned: Any) -> None:
    class Forgetful(LocalTransport):
        def listen(self, sink: Any) -> Any:
            return returned

    said = rf"transport 'local': listen\(\) returned {returned!r}, which is no Listener; end it with: return YourListener"
    with pytest.raises(PluginError, match=said):
        Server(example(), 2, Forgetful()).start()


def test_a_listener_without_an_address() -> None:
    class Homeless(Listener):
        def publish(self, weights: Any) -> None: ...
        def peers(self) -> list[Any]: ...
        def stats(self) -> dict[str, Any]: ...
        def close(self, timeout: float | None = None) -> None:
            closed.append(self)

    class Forgetful(LocalTransport):
        def listen(self, sink: Any) -> Listener:
            return Homeless()

    closed: list[Listener] = []
    with pytest.raises(PluginError, match=r"transport 'local': Homeless has no address; set self.address, with the actual port, in its __init__"):
        Server(example(), 2, Forgetful()).start()
    assert len(closed) == 1


@pytest.mark.parametrize("open_one", [lambda: Client("local://learner", example(), auth=False), lambda: Observer("local://learner", auth=False)])
def test_a_connect_that_returns_nothing(open_one: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(LocalTransport):
        @classmethod
        def connect(cls, address: Address, spec: Any, **options: Any) -> Any: ...

    monkeypatch.setattr(discovery, "transport_class", lambda scheme: Forgetful)
    said = r"local://learner: connect\(\) returned None, which is no Connection; end it with: return YourConnection"
    with pytest.raises(PluginError, match=said):
        open_one()


def test_an_accept_that_returns_nothing_is_in_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = LocalAcceptor.accept

    def forgetful(self: LocalAcceptor) -> Any:
        accept(self).close()

    with serve() as server:
        with monkeypatch.context() as mistake:
            mistake.setattr(LocalAcceptor, "accept", forgetful)
            net.dial("learner").close()  # for the accept() that already waits
            # A complaint about a stranger just before must not hide it.
            until(lambda: any("hung up during the handshake" in record.getMessage() for record in caplog.records), "a stranger is in the log")
            net.dial("learner").close()
            said = "local://learner cannot accept clients: accept() returned None, which is no Channel; end it with: return YourChannel(...)"
            until(lambda: any(record.getMessage() == said for record in caplog.records), "the mistake is in the log")
        net.dial("learner").close()
        connect().close()
        server.stats()
