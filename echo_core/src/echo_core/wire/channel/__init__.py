"""The whole Echo protocol over any reliable byte stream, in Python: the executable reference of
`echo_core.wire.protocol`, and what a transport of one's own is made of (docs/plugins/transport.md).

| file          | what it has                                                          |
|---------------|----------------------------------------------------------------------|
| base.py       | `Channel`, `Acceptor`, `ChannelTransport`: what an author writes      |
| link.py       | frames over a channel after its handshake, and the writing thread     |
| connection.py | the worker's end as its callers see it                                |
| uplink.py     | the worker's session: its state, and the thread that keeps it alive   |
| window.py     | the worker's samples until they are acknowledged                      |
| listener.py   | the learner's end: accept, publish, count, close                      |
| served.py     | one client of a listener                                              |
| sessions.py   | what a learner remembers of its clients between their connections     |
| fair_lock.py       | whose turn it is to put samples into the store                        |
| calls.py      | requests and answers, both ways                                       |
"""

from __future__ import annotations

from .base import Acceptor, Channel, ChannelTransport

__all__ = ["Acceptor", "Channel", "ChannelTransport"]
