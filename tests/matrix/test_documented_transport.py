"""The transport of docs/plugins/transport.md keeps the contract: all clauses that may depend on how its bytes travel."""

from __future__ import annotations

from typing import Any

import pytest

from echo_core.plugins.discovery import transport_class
from echo_testing import TransportContract

pytestmark = [
    pytest.mark.needs("echo-samplers"),
    pytest.mark.usefixtures("documented_transport"),
]


class TestDocumentedTransport(TransportContract):
    variant = True  # the channel is tested with all clauses by echo_zmq and by TLS over TCP

    def transport(self, **options: Any) -> Any:
        path = str(self.scratch / f"{self.unique()}.sock")
        return transport_class("uds")(path=path, **options)
