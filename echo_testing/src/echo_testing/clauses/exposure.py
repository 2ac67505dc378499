"""Clauses about exposure: without authentication, a learner is reachable from its own machine only."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

import pytest

from echo_core.base.address import is_loopback_host
from echo_core.base.errors import SecurityError
from echo_core.base.option_reader import option_fields
from echo_core.server.server import Server

from ..rig import Rig
from ..samples import example
from . import carrier

_REMEDY = "call echo_core.security.tokens.check_exposure before the address is taken"


@carrier
class ExposureClauses:
    def test_it_does_not_listen_beyond_this_machine_without_authentication(self) -> None:
        """Every interface must be refused, and so must a host that only this learner's network reaches."""
        way = self.transport(auth=False)
        options = option_fields(type(way).Options)
        if "host" not in options:
            pytest.skip("this transport has no option host: see the next clause")
        given = {name: getattr(way.options, name) for name in options}
        given |= {"allow_insecure": False} if "allow_insecure" in options else {}
        for host in ("0.0.0.0", "192.0.2.1"):  # the second is no machine's address, so it is refused before it is tried
            before = open_to_others()
            learner = Server(example(), 8, type(way)(**{**given, "host": host}))
            try:
                learner.start()
            except SecurityError:
                assert open_to_others() == before, "it was open to other machines before it refused"
            except OSError as error:
                pytest.fail(f"{way.scheme} tried to listen on {host} without authentication ({error}); {_REMEDY}")
            else:
                pytest.fail(f"{way.scheme} listens on {host} without authentication, and raised no SecurityError; {_REMEDY}")
            finally:
                learner.close(timeout=1)

    def test_unless_told_otherwise_it_is_open_to_this_machine_only(self, rig: Rig) -> None:
        before = open_to_others()
        server = rig.server(listen={"auth": False})
        address = server.address
        rig.client(server, auth=False)
        assert address.is_loopback, f"it listens at {address} without authentication; {_REMEDY}"
        assert open_to_others() == before, f"its address is {address}, and other machines can connect all the same; {_REMEDY}"


def open_to_others() -> list[str]:
    """Every address beyond loopback at which a socket of this process listens."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it is no socket, or was closed meanwhile
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as twin:
                if twin.family in (socket.AF_INET, socket.AF_INET6) and twin.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    host, port = twin.getsockname()[:2]
                    if not is_loopback_host(host):
                        found.append(f"{host}:{port}")
    return sorted(found)
