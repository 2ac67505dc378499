"""The whole Echo protocol over any reliable byte stream, in Python: the executable reference of
`echo_core.wire.protocol`, and what a transport of one's own is made of (docs/plugins/transport.md).

| file               | what it has                                                         |
|--------------------|---------------------------------------------------------------------|
| channel.py         | `Channel` and `Acceptor`: what an author writes                      |
| transport.py       | `ChannelTransport`, which makes a whole transport of them            |
| link.py            | frames over a channel after its handshake, and the writing thread    |
| connection.py      | the worker's end as its callers see it                               |
| uplink.py          | the worker's session: its state, and the thread that keeps it alive  |
| window.py          | the worker's samples until they are acknowledged                     |
| acknowledgement.py | when an acknowledgement becomes due, at either end                   |
| listener.py        | the learner's end: accept, publish, count, close                     |
| served.py          | one client of a listener                                             |
| host.py            | what a served client needs of its listener                           |
| subscription.py    | which version of the weights a client has, and is being sent         |
| sessions.py        | what a learner remembers of its clients between their connections    |
| fair_lock.py       | whose turn it is to put samples into the store                       |
| calls.py           | a worker's requests and their answers                                |

Which of these a transport may extend, and by which names: docs/plugins/transport.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .channel import Acceptor, Channel

if TYPE_CHECKING:
    from .transport import ChannelTransport

__all__ = ["Acceptor", "Channel", "ChannelTransport"]


def __getattr__(name: str) -> Any:
    if name != "ChannelTransport":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .transport import ChannelTransport  # when it is used: the files of this folder import the package first

    return ChannelTransport
