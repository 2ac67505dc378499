"""The conformance kit: what every transport and every sampler must do, as tests to inherit.

    pip install "echo-core[testing]"

A plugin's test module subclasses a contract, says how to make one of its own, and inherits one
test for each clause. This is all that a transport over sockets needs:

    # tests/test_contract.py
    from echo_core.testing import TransportContract
    from echo_uds.transport import UdsTransport

    class TestUds(TransportContract):
        def transport(self, **options):
            # One that can listen now, beside any others: a free port, a new path.
            return UdsTransport(path=self.scratch / f"{self.unique()}.sock", **options)

and this a sampler:

    from echo_core.testing import SamplerContract
    from echo_lifo import Lifo

    class TestLifo(SamplerContract):
        def sampler(self, **options):
            return Lifo(**options)

        def expected(self, order, priorities):
            return None  # drawn at random; or the keys, in the order they must be drawn

A plugin is found by its entry point here as everywhere else, so install it first (`pip install -e
.`). What a transport cannot do at all is said in one place, `capabilities`; what its address does
not tell, `connect_options`; how its link is cut without sockets, `sever`. Everything else is the
contract of `echo_core.wire.transport` and `echo_core.store.sampler`, and not negotiable.

The tests are real: several processes, forks, signals, cut links, restarts. They take about a
minute and leave nothing behind. `echo_core.testing.samples` (samples that tell whether they
arrived), `echo_core.testing.processes` (forks, Ctrl-C, calls that must come back),
`echo_core.testing.fixtures` (no settings of the user, nothing left behind) and
`echo_core.testing.stress` (native programs under sanitizers) are good for a plugin's
own tests too; a transport with TLS inherits `TlsContract` as well.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if "pytest" in sys.modules:
    # So that a failed `assert` in here shows its values. Other processes of a test import only
    # `echo_core.testing.workers`, and start without pytest.
    parts = ("clauses", "native_door", "processes", "rig", "sampler", "sampler_clauses", "samples", "stress", "threads", "tls", "transport")
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
    try:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise ModuleNotFoundError(
            'the contracts are pytest classes; run: pip install "echo-core[testing]"', name="pytest"
        ) from error
