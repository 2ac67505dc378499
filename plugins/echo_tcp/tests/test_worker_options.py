"""Options of a worker's end, given by name or in its address."""

from __future__ import annotations

from typing import Any

import pytest
from numbered import SMALL
from wire_learner import WireLearner, connect

from echo_core.base.address import Address
from echo_core.base.errors import AddressError, ConfigError
from echo_core.plugins.discovery import transport_class
from echo_core.spec.spec import Spec
from echo_tcp.transport import TcpTransport


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "echo3"},
        {"window_bytes": 0},
        {"max_inflight_msgs": -1},
        {"max_coalesced_bytes": 1 << 30},
        {"timeout": -1.0},
        {"windowbytes": 1},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with WireLearner(SMALL) as learner, pytest.raises(ConfigError):
        connect(learner, **options)


def test_options_in_the_address() -> None:
    with WireLearner(SMALL) as learner:
        address = type(learner.address).parse(f"{learner.address}?max_inflight_msgs=3&name=ann")
        with TcpTransport.connect(address, learner.spec) as worker:
            assert worker.options.max_inflight_msgs == 3 and worker.options.name == "ann"


@pytest.mark.parametrize("scheme", ["tcp", "tcps"])
def test_an_address_has_no_path(scheme: str) -> None:
    with pytest.raises(AddressError, match=f'write "{scheme}://127.0.0.1:9"'):
        transport_class(scheme).connect(Address.parse(f"{scheme}://127.0.0.1:9/table"), Spec.from_example(SMALL))
    with pytest.raises(AddressError, match=f'"{scheme}://learner" has no port; did you mean "{scheme}://learner:5555"'):
        transport_class(scheme).connect(Address.parse(f"{scheme}://learner"), Spec.from_example(SMALL))
