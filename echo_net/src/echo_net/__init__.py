"""Echo's protocol over any byte stream. A transport of one's own is made of it (docs/plugins/transport.md). It needs echo_core only.

| package or module    | what it has                                                                           |
|----------------------|---------------------------------------------------------------------------------------|
| channel              | the whole protocol over a reliable byte stream; a transport's author begins here       |
| handshake            | who is at the other end, and whether both mean the same samples, without any I/O       |
| network              | guards of listeners on a network, and signs of life                                   |
| gather, scatter      | native: frames of samples are made by a worker, and read into the store by a learner   |

The frames themselves are described in `echo_core.wire.protocol`, because the core packs and reads requests, too.
"""

from __future__ import annotations

import echo_core

__version__ = "0.1.0"

if echo_core.__version__ != __version__:  # the compiled modules would read the core's native classes at wrong places, and say nothing
    from echo_core.base.errors import PluginVersionError
    from echo_core.base.installing import how_to_install

    raise PluginVersionError(
        f"echo-net {__version__} works with echo-core {__version__} only, and this is echo-core {echo_core.__version__}; {how_to_install('echo-core[net]')}"
    )
