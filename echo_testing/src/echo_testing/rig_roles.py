"""The roles in which a client may stand to the learner whose link a clause cuts, stalls or ends: `Linked`, and the marks that run a clause for each."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo_core.base.address import Address
from echo_core.server.server import Server

from .processes import until
from .rig import Rig, drain
from .samples import stacked

__all__ = ["Linked", "asking_roles", "each_role"]

#: "worker" sends samples, "observer" only asks and draws, and "weights" takes only weights over the link (`Client(weights=...)`).
each_role = pytest.mark.parametrize("role", ["worker", "observer", "weights"])
asking_roles = pytest.mark.parametrize("role", ["worker", "observer"])

WEIGHTS_BYTES = 1 << 20
_numbers = itertools.count(1000)  # of makers, and of weights


class Linked:
    """A client with a link to a server in one of the roles.

    Args:
        to: the server, or its address.
        options: the options of the link.

    Attributes:
        client: the client.
        link: its connection to that server.
    """

    def __init__(self, rig: Rig, role: str, to: Server | Address, **options: Any) -> None:
        self.role = role
        if role == "weights":
            where = rig.source(to)
            name = {"name": options.pop("name")} if "name" in options else {}
            where = replace(where, options=where.options | {key: str(value) for key, value in options.items()})
            self.client = rig.client(rig.server(), weights=where, **name)
            self.link = self.client._weights_from
        else:
            self.client = rig.client(to, role=role, **options)
            self.link = self.client._connection

    def use(self, server: Server) -> None:
        """Do everything that the client may do over the link, and check what comes. `server` must be empty, and its batch size must divide 8."""
        number = next(_numbers)
        published = server.publish({"w": np.full(WEIGHTS_BYTES // 4, number, np.int32)})
        weights = until(lambda: (got := self.client.weights()).digest == published.digest and got, "its weights have come")
        assert (weights.params["w"] == number).all()
        if self.role == "weights":
            return
        assert self.client.request("ping", blob=b"you?")[1] == b"you?"
        if self.role == "worker":
            self.client.send_batch(stacked(number, 0, 8))
            self.client.wait()
            drain(server, 8).check({number: 8})

    def stats(self) -> dict[str, Any]:
        return self.link.stats()
