"""The connection to a server from which a client takes weights, but to which it sends nothing."""

from __future__ import annotations

import numpy as np

from ..base.address import Address
from ..base.errors import EchoError
from ..base.returned import returned
from ..plugins.reaching import reach
from ..security.tokens import Token
from ..spec.spec import Spec
from ..wire.transport import Connection

__all__ = ["weights_connection"]


def weights_connection(address: Address, name: str, timeout: float, within: float, token: Token | None) -> Connection:
    """Connect to the server at `address` as an observer, whose handshake does not compare the spec.

    `timeout` is the default timeout of its waits, `within` how many seconds connecting may take.

    Raises the errors of `Client`; the message says that it is about the weights.
    """
    try:
        reached = reach(address, None, within)
        spec = Spec.from_example(np.zeros(1, np.uint8))
        made = reached.transport.connect(reached.address, spec, role="observer", name=name, timeout=timeout, token=token, **reached.options)
    except EchoError as error:
        error.args = (f"{error} (from there, this client would take its weights)",)
        raise
    return returned(made, Connection, f"{address}: connect()")
