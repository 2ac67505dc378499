"""A served client as the holder of its id (see wire/identity.py)."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from echo_core.base.errors import ConnectionClosedError
from echo_core.wire.identity import Claim
from echo_core.wire.protocol import Kind, frame

if TYPE_CHECKING:
    from echo_core.wire.identity import Identities
    from echo_core.wire.peer import Peer

    from ..handshake import ServerHandshake
    from .channel import Channel
    from .link import Link

__all__ = ["ChannelHolder"]


class ChannelHolder:
    """See `echo_core.wire.identity.Holder`. It refers to the client's parts and not to the client, so no cycle keeps that alive.

    Attributes:
        link: set once frames travel.
    """

    def __init__(self, channel: Channel, peer: Peer) -> None:
        self.link: Link | None = None
        self._channel = channel
        self._peer = peer
        self._claim: Claim | None = None

    def claim(self, identities: Identities, handshake: ServerHandshake) -> None:
        """Hold the id of the client whose handshake is agreed. Only workers hold ids: nobody else sends samples.

        Raises:
            ConnectionClosedError: another client holds the id and lives. This client was told so.
        """
        if self._peer.role != "worker":
            return
        process = f"{self._peer.pid} {self._peer.host}"
        self._claim = identities.claim(self._peer.id, handshake.peer["session"], self, table=self._peer.table, process=process)
        while not self._claim.decided():
            time.sleep(max(0.0, self._claim.ask_again - time.monotonic()))
        if self._claim.refusal:
            self._channel.send([handshake.refuse("identity", self._claim.refusal)])
            raise ConnectionClosedError(self._claim.refusal)

    def release(self) -> None:
        """The client is gone, or was turned away. Does nothing if it holds no id."""
        if self._claim is not None:
            self._claim.withdraw()
            self._claim = None

    def ask(self) -> None:
        if self.link is not None:
            self.link.send_soon(frame(Kind.PING))

    def heard_at(self) -> float:
        return self.link.heard_at if self.link is not None and self.link.reads else math.inf

    def describe(self) -> str:
        return f"worker {self._peer.name!r} (pid {self._peer.pid} on {self._peer.host!r})"

    def give_way(self, reason: str) -> None:
        if self.link is not None:
            self.link.fail(ConnectionClosedError(reason))
        else:
            self._channel.shutdown()
