"""Shared memory keeps the contract of `echo_core.wire.transport`."""

from __future__ import annotations

import os
import socket
import tempfile
from typing import Any

import pytest

from echo_shm.sockets import place
from echo_shm.transport import ShmTransport
from echo_testing import Capabilities, TransportContract
from echo_testing.rig import sever_sockets

pytestmark = pytest.mark.usefixtures("no_memory_left")


class TestShm(TransportContract):
    """A name is an abstract socket. `sever_sockets` and plain dialling need another form of its address."""

    capabilities = Capabilities(relayable=False)  # descriptors of memory travel on the socket

    def transport(self, **options: Any) -> ShmTransport:
        return ShmTransport(**options)

    def sever(self, server: Any, client: Any, reset: bool) -> None:
        where = place(server.address.path, os.geteuid()).encode()
        assert sever_sockets(type("Where", (), {"path": where, "port": None})(), reset)

    def dial(self, address: Any) -> socket.socket:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(5)
        stranger.connect(place(address.path, os.geteuid()))
        return stranger


class TestShmAtAPath(TransportContract):
    """A path, as containers share it. It has a folder of its own, because a socket's path must be short and the tests' folder names are long."""

    variant = True
    capabilities = Capabilities(relayable=False)

    def transport(self, **options: Any) -> ShmTransport:
        self._folder = getattr(self, "_folder", None) or tempfile.TemporaryDirectory(prefix="echo-shm-")
        return ShmTransport(f"{self._folder.name}/{self.unique()}.sock", **options)


class TestShmPrivate(TestShm):
    """Workers see no memory of the learner's store."""

    variant = True

    def transport(self, **options: Any) -> ShmTransport:
        return ShmTransport(mode="private", **options)
