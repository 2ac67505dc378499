"""Sources of plugins that are made up, for distributions that consist of a dist-info and these modules."""

from __future__ import annotations

__all__ = ["TRANSPORT", "TRANSPORT_CLASS"]

TRANSPORT = """
from echo_core.plugins.hookspecs import TransportInfo, hookimpl

@hookimpl
def echo_transports():
    return [TransportInfo({name!r}, "{module}_impl:Way", client="{module}_impl:Client", api={api})]
"""
TRANSPORT_CLASS = """
from echo_core.wire.transport import Transport

class Way(Transport):
    scheme = "way"
    def listen(self, sink): ...
    @classmethod
    def connect(cls, address, spec, **options): ...

class Client: ...
"""
