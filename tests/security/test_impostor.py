"""An impostor that relays the handshake to the real learner: TLS keeps it out, and nothing else does, which SECURITY.md says."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from strangers import EXAMPLE

from echo_core import Client, SecurityError, Server
from echo_core.security.tls import Authority

PAGE = Path(__file__).parents[2] / "SECURITY.md"


@pytest.mark.needs("echo-samplers")
@pytest.mark.parametrize("scheme", ["tcps", "grpcs"], indirect=True)
def test_tls_keeps_an_impostor_out_that_relays_the_handshake(serve: Callable[..., Server], tmp_path: Path) -> None:
    server, heard = serve(), []
    theirs = Authority.create(tmp_path).issue("learner", ["127.0.0.1"])  # of an authority that the worker does not trust
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*theirs)
    context.set_alpn_protocols(["h2"])

    def relay() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:  # closed
                return
            with suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as worker:
                heard.append(worker.recv(1))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay)
        thread.start()
        with pytest.raises(SecurityError, match="certificate"):
            Client(replace(server.address, port=listener.getsockname()[1]), EXAMPLE, timeout=20)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)
    assert not any(heard), "the worker said nothing"


@pytest.mark.parametrize("who", ["somebody in the middle", "an impostor learner"])
def test_the_page_names_tls_for_both(who: str) -> None:
    (row,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| **{who}**"))
    protection = row.split("|")[-2].strip()
    assert protection.startswith("only TLS (`tcps://`, `grpcs://`) protects")
