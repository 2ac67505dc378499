"""The conformance kit: tests to inherit that check the duties of every transport and every sampler. The extra `testing` of echo-core brings it.

A plugin's test module subclasses a contract, defines how to make the plugin's object, and inherits
one test for each clause. A transport over sockets needs only this:

    # tests/test_contract.py
    from echo_testing import TransportContract
    from echo_uds.transport import UdsTransport

    class TestUds(TransportContract):
        def transport(self, **options):
            # It must be able to listen now, in addition to any others: use a free port or a new path.
            return UdsTransport(path=self.scratch / f"{self.unique()}.sock", **options)

A sampler needs only this:

    from echo_testing import SamplerContract
    from echo_lifo import Lifo

    class TestLifo(SamplerContract):
        def sampler(self, **options):
            return Lifo(**options)

        def expected(self, order, priorities):
            return None  # for random draws; otherwise the keys, in the order in which they must be drawn

The tests find a plugin by its entry point, as Echo always does, so install it first (`pip install
-e .`). Set `capabilities` for functions that a transport cannot offer, `connect_options` for options of its
clients (an option that both ends need is there and in `transport`), and `sever` if its link is cut in
another way than by sockets. All other
duties are those of `echo_core.wire.transport` and `echo_core.store.sampler`; a plugin cannot opt out.

The tests use several processes, forks, signals, cut links and restarts. They take about a minute
and leave nothing behind. A plugin's own tests can also use `echo_testing.samples` (samples that
show whether they arrived), `echo_testing.processes` (forks, Ctrl-C, calls that must return),
`echo_testing.fixtures` (no settings of the user, nothing left behind) and
`echo_testing.stress` (native programs under sanitizers). A transport with TLS also inherits
`TlsContract`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if "pytest" in sys.modules:
    # This makes a failed `assert` of this package show its values. Other processes of a test import
    # only `echo_testing.workers`, and start without pytest.
    parts = (
        "clauses", "native_door", "processes", "rig", "rig_locks", "rig_roles", "sampler", "sampler_clauses", "samples", "stress", "threads", "tls",
        "transport",
    )
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{part}" for part in parts))

if TYPE_CHECKING:
    from .capabilities import Capabilities
    from .sampler import SamplerContract
    from .tls import TlsContract
    from .transport import TransportContract

__all__ = ["Capabilities", "SamplerContract", "TlsContract", "TransportContract"]

_HOME = {
    "Capabilities": "capabilities",
    "SamplerContract": "sampler",
    "TlsContract": "tls",
    "TransportContract": "transport",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
