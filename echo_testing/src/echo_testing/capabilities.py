"""The functions that a transport offers: `Capabilities`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOT_RUN", "Capabilities"]

NOT_RUN = "not run, because no sample arrives"  # the reason, or its beginning, for which clauses are skipped that need a sample to arrive


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Set an attribute to False only if that function makes no sense for the transport, never to pass a test.
    `damage_proof` is the only one that is False unless you set it.

    Attributes:
        processes: workers may run in other processes of the learner's machine.
        authenticates: clients without the token are refused. False: the operating system
            decides who can reach the address.
        exclusive: an address can have only one listener; a second one raises an OSError that names it.
        restarts: an address can be used again after its listener was closed or its learner was killed.
        severable: `TransportContract.sever` can cut a link.
        forks: a forked child may make its own connection after its parent had one. False: the child
            gets a ForkError.
        relayable: all bytes of a client travel over one TCP connection to the learner's address, so that a relay can stand
            between them (`TransportContract.relay`).
        damage_proof: a checksum or TLS covers every byte, so that bytes which were damaged on the way end the link and reach no store.
        independent: a process that is stopped or killed in the middle of a message never costs another client its connection. False: all
            clients of a machine send into one queue, and the learner starts it anew when it is blocked.
        dialable: unauthenticated clients can reach the address with a plain socket and write any bytes.
    """

    processes: bool = True
    authenticates: bool = True
    exclusive: bool = True
    restarts: bool = True
    severable: bool = True
    forks: bool = True
    relayable: bool = True
    damage_proof: bool = False
    independent: bool = True
    dialable: bool = True
