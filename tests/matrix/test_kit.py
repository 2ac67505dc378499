"""The conformance kit catches transports that break the contract: here, one that kept it until it was sabotaged."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echo_core import Server
from echo_core.plugins.discovery import transport_class
from echo_net.channel import connection, listener
from echo_testing import TransportContract
from echo_testing.clauses import is_carrier
from echo_testing.rig import Rig

pytestmark = [
    pytest.mark.needs("echo-samplers"),
    pytest.mark.usefixtures("documented_transport"),
]

Connection, Listener = connection.ChannelConnection, listener.ChannelListener
send, listen = Connection.send, Listener.__init__
test_is_over = threading.Event()


class Contract(TransportContract):
    def transport(self, **options: Any) -> Any:
        return transport_class("uds")(path=str(self.scratch / f"{self.unique()}.sock"), **options)


def loses(self: Any, sample: Any, timeout: float | None = None) -> None:
    if sample["number"] % 10 != 3:
        send(self, sample, timeout)


def doubles(self: Any, sample: Any, timeout: float | None = None) -> None:
    for _ in range(2 if sample["number"] % 10 == 3 else 1):
        send(self, sample, timeout)


def tears(self: Any, sample: Any, timeout: float | None = None) -> None:
    send(self, {**sample, "filler": sample["filler"][::-1]}, timeout)


def does_not_wait(self: Any, timeout: float | None = None) -> None:
    pass


def leaves_a_thread(self: Any, *arguments: Any) -> None:
    listen(self, *arguments)
    threading.Thread(target=test_is_over.wait, daemon=True).start()


@pytest.mark.parametrize(
    ("owner", "method", "broken", "clause"),
    [
        (Connection, "send", loses, "test_threads_that_share_a_client_tear_nothing"),
        (Connection, "send", doubles, "test_several_workers_share_a_learner"),
        (Connection, "send", tears, "test_a_full_store_stops_the_sender_and_loses_nothing"),
        (Connection, "wait", does_not_wait, "test_a_full_store_stops_the_sender_and_loses_nothing"),
        (Connection, "close", does_not_wait, "test_close_says_what_it_could_not_deliver"),
        (Listener, "__init__", leaves_a_thread, "test_a_session_leaves_no_threads_and_no_descriptors"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a clause that fails leaves threads that still send
def test_a_broken_transport_is_caught(
    owner: type,
    method: str,
    broken: Callable[..., None],
    clause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("echo_testing.rig.PATIENCE", 3.0)
    monkeypatch.setattr("echo_testing.processes.LONG", 6.0)  # what is left behind here stays, however long one waits
    monkeypatch.setenv("ECHO_TOKEN", "the-token-of-this-test-which-is-long-enough")
    contract = Contract()
    contract.scratch = tmp_path
    rig = Rig(contract)
    arguments = {"filler": 48} if "threads_that" in clause else {"close": True} if "session" in clause else {}
    with monkeypatch.context() as sabotage:
        sabotage.setattr(owner, method, broken)
        with pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError)):
            getattr(contract, clause)(rig, **arguments)
    test_is_over.set()
    rig.end()
    test_is_over.clear()


@pytest.mark.needs("echo-tcp")
def test_a_transport_that_forgot_to_check_its_exposure_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OverTcp(TransportContract):
        def transport(self, **options: Any) -> Any:
            return transport_class("tcp")(port=0, **options)

    contract = OverTcp()
    contract.scratch = tmp_path
    contract.test_it_does_not_listen_beyond_this_machine_without_authentication()
    monkeypatch.setattr("echo_tcp.transport.check_exposure", lambda *_, **__: None)
    with pytest.raises(pytest.fail.Exception, match="check_exposure"):
        contract.test_it_does_not_listen_beyond_this_machine_without_authentication()


@pytest.mark.needs("echo-tcp")
def test_a_port_that_other_machines_reach_is_found_whatever_the_address_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OverTcp(TransportContract):
        def transport(self, **options: Any) -> Any:
            return transport_class("tcp")(port=0, **options)

    contract = OverTcp()
    contract.scratch = tmp_path
    rig = Rig(contract)
    opened: list[socket.socket] = []
    start = Server.start

    def with_another_port(self: Server) -> Server:
        opened.append(socket.create_server(("0.0.0.0", 0)))
        return start(self)

    monkeypatch.setattr(Server, "start", with_another_port)
    try:
        with pytest.raises(AssertionError, match="other machines can connect"):
            contract.test_unless_told_otherwise_it_is_open_to_this_machine_only(rig)
    finally:
        rig.end()
        for sock in opened:
            sock.close()


def clauses(contract: type) -> set[str]:
    """The tests that pytest collects of a class."""
    return {name for name in dir(contract) if name.startswith("test_") and callable(getattr(contract, name))}


def test_a_variant_runs_the_clauses_that_depend_on_how_bytes_travel_and_its_own() -> None:
    class Variant(Contract):
        variant = True

        def test_of_its_own(self) -> None:
            pass

        def test_options_are_checked(self, rig: Rig) -> None:
            pass

    class AnotherVariant(Variant):
        pass

    marked = {name for name in clauses(TransportContract) if is_carrier(getattr(TransportContract, name))}
    assert clauses(Variant) == clauses(AnotherVariant) == marked | {"test_of_its_own", "test_options_are_checked"}
    assert clauses(Contract) == clauses(TransportContract), "another class of the same transport keeps all"
    assert 50 < len(marked) < len(clauses(Contract)) // 2


def test_clauses_that_cut_or_damage_links_are_run_for_variants() -> None:
    broken = {name for name in clauses(TransportContract) if any(word in name for word in ("cut", "damaged", "crumbs", "short_writes", "any_size"))}
    assert len(broken) > 8
    assert [name for name in sorted(broken) if not is_carrier(getattr(TransportContract, name))] == []
