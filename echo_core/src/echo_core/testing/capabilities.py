"""What a transport can do at all, answered in one place."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Capabilities"]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Set one to False only where it makes no sense for a transport, never to pass a test.

    Attributes:
        processes: workers may live in other processes of the learner's machine.
        authenticates: who does not hold the token is refused. False: the operating system
            decides who can reach the address.
        exclusive: an address has one listener; a second is an OSError that names it.
        restarts: an address that was closed, or whose learner was killed, can be taken again.
        severable: `TransportContract.sever` can cut a link.
        forks: a forked child may make a connection of its own after its parent had one. False: it
            is told so by a ForkError.
        dialable: strangers can reach the address with a plain socket and write what they like.
    """

    processes: bool = True
    authenticates: bool = True
    exclusive: bool = True
    restarts: bool = True
    severable: bool = True
    forks: bool = True
    dialable: bool = True
