"""The transport of docs/plugins/transport.md keeps the whole contract, and with it everything that
`echo_core.wire.channel` does for transports over a stream of bytes."""

from __future__ import annotations

from typing import Any

import pytest

from echo_core.plugins.discovery import transport_class
from echo_core.testing import TransportContract

pytestmark = [
    pytest.mark.needs("echo-samplers"),
    pytest.mark.usefixtures("documented_transport"),
]


class TestDocumentedTransport(TransportContract):
    def transport(self, **options: Any) -> Any:
        path = str(self.scratch / f"{self.unique()}.sock")
        return transport_class("uds")(path=path, **options)
