"""The advice for a worker that does not reach its learner: `unreachable.advice`, and the errors that end in it."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core import Client, EchoTimeoutError
from echo_core.base.address import Address
from echo_net.network.unreachable import advice

REFUSED = ConnectionRefusedError(111, "Connection refused")
PLAIN = "start the learner, or correct the address"


@pytest.mark.parametrize(
    "address, trouble, end",
    [
        ("tcp://127.0.0.1:1", REFUSED, PLAIN),
        ("shm://here", REFUSED, PLAIN),
        ("tcp://learner:1", TimeoutError("timed out"), PLAIN),
        ("tcp://learner:1", None, PLAIN),
        ("tcp://learner:1", REFUSED, 'give it host="0.0.0.0" (and a token)'),
        ("grpc://10.0.0.5:1", "failed to connect: Connection refused", 'give it host="0.0.0.0" (and a token)'),
        ("tcp://0.0.0.0:1", REFUSED, "so write the name or address of the learner's"),
        ("tcp://[::]:1", TimeoutError("timed out"), "so write the name or address of the learner's"),
    ],
)
def test_advice(address: str, trouble: object, end: str) -> None:
    text = advice(Address.parse(address), trouble)
    assert text.startswith(PLAIN) and text.endswith(end)


def test_the_original_protocol_has_one_remedy() -> None:
    text = advice(Address.parse("tcp://learner:1"), REFUSED, tokens=False)
    assert 'host="0.0.0.0"' in text and "allow_insecure=True" in text and "a token" not in text


@pytest.mark.needs("echo-tcp", "echo-grpc")
@pytest.mark.parametrize("scheme", ["tcp", "tcps", "grpc", "grpcs"])
def test_a_wildcard_is_no_address_of_a_learner(scheme: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
    for host in ("0.0.0.0", "[::]"):
        with pytest.raises(EchoTimeoutError, match="connects to its own machine"):
            Client(f"{scheme}://{host}:1", {"x": np.zeros(2)}, timeout=0.3)
