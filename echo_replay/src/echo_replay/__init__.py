"""Replay tables for Echo: experience that is drawn as often as a sampler decides. They work in one process, and behind a server of echo_core.

    from echo_core import Table              # found here

    with Table("replay", example, capacity=100_000, sampler="prioritized").open(batch_size=256) as table:
        table.submit(sample)
        batch, info = table.sample()

| package or module    | what it has                                                                           |
|----------------------|---------------------------------------------------------------------------------------|
| config               | `Table`, the description of a table; the section `[[server.tables]]` of a configuration |
| remote               | a client's access to the tables of a server                                           |
| requests             | how a server answers the requests of clients for its tables                           |
| mixture              | one batch from several tables                                                         |
| checkpoint           | tables on disk                                                                        |
| steps                | tables of steps, whose items are windows or n-step transitions                        |
| tables               | rows, priorities, rate limiters, draws                                                |

A folder imports only from folders below it in this list. The contract of samplers is in `echo_core.store.sampler`.
"""

from __future__ import annotations

import echo_core

__version__ = "0.1.0"

if echo_core.__version__ != __version__:  # the compiled modules would read the core's native classes at wrong places, and say nothing
    from echo_core.base.errors import PluginVersionError
    from echo_core.base.installing import how_to_install

    raise PluginVersionError(
        f"echo-replay {__version__} works with echo-core {__version__} only, and this is echo-core {echo_core.__version__}; "
        f"{how_to_install('echo-core[replay]')}"
    )
