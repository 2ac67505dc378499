"""The contract of `echo_core.wire.transport`, one test per clause; see `echo_testing`."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from echo_core.base.address import Address
from echo_core.base.option_reader import option_fields
from echo_core.client.client import Client
from echo_core.server.server import Server
from echo_core.wire.transport import Transport

from .capabilities import NOT_RUN, Capabilities
from .clauses import is_carrier
from .clauses.clients.client_ids import ClientIdClauses
from .clauses.clients.identity import IdentityClauses
from .clauses.clients.job_end import JobEndClauses
from .clauses.clients.leftovers import LeftoverClauses
from .clauses.clients.one_peer import OnePeerClauses
from .clauses.ending import EndingClauses
from .clauses.experience import ArrivalClauses, ExperienceClauses
from .clauses.exposure import ExposureClauses
from .clauses.finding import FindingClauses
from .clauses.hygiene import HygieneClauses
from .clauses.memory import MemoryClauses
from .clauses.processes import ProcessClauses
from .clauses.records import RecordClauses
from .clauses.recovery import RecoveryClauses
from .clauses.refusal import RefusalClauses
from .clauses.requests.calls import CallClauses
from .clauses.requests.deaths import DeathClauses
from .clauses.requests.lost_links import LostLinkClauses
from .clauses.requests.parked import ParkedClauses
from .clauses.requests.waiting_at_tables import LineClauses
from .clauses.silence import SilenceClauses
from .clauses.stream import StreamClauses
from .clauses.waiting import WaitingClauses
from .clauses.weights.publishing import WeightsClauses
from .clauses.weights.relays import RelayClauses
from .processes import until
from .relay import Relay
from .rig import Rig, sever_sockets

__all__ = ["TransportContract"]

TOKEN = "the-token-of-the-conformance-kit-which-is-long-enough"


class TransportContract(
    ExperienceClauses,
    RefusalClauses,
    ExposureClauses,
    WaitingClauses,
    EndingClauses,
    JobEndClauses,
    RecoveryClauses,
    RecordClauses,
    WeightsClauses,
    RelayClauses,
    IdentityClauses,
    MemoryClauses,
    ClientIdClauses,
    OnePeerClauses,
    LeftoverClauses,
    ParkedClauses,
    LineClauses,
    LostLinkClauses,
    CallClauses,
    DeathClauses,
    FindingClauses,
    SilenceClauses,
    StreamClauses,
    ProcessClauses,
    HygieneClauses,
    ArrivalClauses,  # pytest begins with the last base class
    ABC,
):
    """The base class of a transport's tests. A subclass must define only `transport`. If no sample arrives at all, `test_a_sample_arrives` fails, and
    all other tests of the class are skipped.

    Attributes:
        capabilities: the functions that the transport offers.
        variant: whether this is a transport that another class tests with all clauses, with other options or at another kind of address. It
            is then tested with the clauses that may end otherwise for that reason.
        connect_options: keywords for every `Client(address, example, ...)`. An option that both ends need is here and in `transport`.
        scratch: an empty folder for the running test.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    variant: ClassVar[bool] = False
    connect_options: ClassVar[dict[str, Any]] = {}
    scratch: Path

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in _clauses() if cls.variant else ():
            if getattr(cls, name) is getattr(TransportContract, name) and not is_carrier(getattr(cls, name)):
                setattr(cls, name, None)  # pytest does not collect it

    @abstractmethod
    def transport(self, **options: Any) -> Transport:
        """A transport that can listen now, in addition to all others: it needs a free address and gets
        `options` (those of `ListenOptions`: auth, timeout, max_connections)."""

    def listen_options(self, **options: Any) -> dict[str, Any]:
        """All options of `transport(**options)` but its place: a learner needs them that is started again at the same address, perhaps in
        another process. Override it if the place of your transport is in other options than `host`, `port` and `path`."""
        way = self.transport(**options)
        return {name: getattr(way.options, name) for name in option_fields(type(way).Options) if name not in ("host", "port", "path")}

    def sever(self, server: Server, client: Client, reset: bool) -> None:
        """Cut the link between the two without notice to either, as a failing network would. With
        `reset`, discard data under way. This method works for every kind of socket."""
        # A link that was cut a moment ago and is not yet restored has no socket.
        until(lambda: sever_sockets(server.address, reset), "a socket to cut; or override sever()")

    def relay(self, server: Server) -> Relay:
        """A relay in front of `server`, on which faults of a network can be made. Override it where addresses have no port."""
        if server.address.port is None:
            pytest.skip("the addresses of this transport have no port, so no relay can stand in front of one (override relay())")
        return Relay(server.address.endpoint)

    def through(self, relay: Relay, server: Server) -> Address:
        """The address by which a client reaches `server` through `relay`."""
        return replace(server.address, host="127.0.0.1", port=relay.port)

    def unique(self) -> str:
        """A name that no other call returns."""
        return f"{next(_numbers)}"

    @pytest.fixture(autouse=True)
    def _surroundings(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if self.unable:
            pytest.skip(f"{NOT_RUN}: see test_a_sample_arrives")
        self.scratch = tmp_path
        monkeypatch.setenv("ECHO_TOKEN", TOKEN)
        for name in ("ECHO_TOKEN_FILE", "ECHO_DISABLE_PLUGINS"):
            monkeypatch.delenv(name, raising=False)

    @pytest.fixture
    def rig(self, _surroundings: None) -> Iterator[Rig]:
        """The servers, clients and processes of this test."""
        rig = Rig(self)
        yield rig
        rig.end()

    @pytest.fixture
    def needs(self) -> Any:
        """`needs("severable")` skips the test unless the transport is."""

        def needs(capability: str) -> None:
            if not getattr(self.capabilities, capability):
                pytest.skip(f"this transport is not {capability} (capabilities.{capability})")

        return needs


def _clauses() -> list[str]:
    """The names of all clauses of the contract."""
    return [name for name in dir(TransportContract) if name.startswith("test_")]


_numbers = itertools.count(1)
