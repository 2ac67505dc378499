"""A small HTTP server on threads of its own, for figures and pages: `HttpEndpoint`. It uses only the standard library."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from echo_core.base.address import is_loopback_host

__all__ = ["HttpEndpoint", "Request"]

_log = logging.getLogger("echo")


class Request(BaseHTTPRequestHandler):
    """One connection; a subclass defines `do_GET`. It logs at the level debug, and nothing to stderr."""

    server: ThreadingHTTPServer
    timeout = 10.0  # seconds that it waits for the request of a silent client

    def asks_for_this_machine(self) -> bool:
        """False if the server listens on loopback and the request names another host.

        Then it comes from the page of another site, whose name was made to resolve to this machine (DNS rebinding). Programs that
        send no Host are no browsers.
        """
        given = self.headers.get("Host")
        if given is None or not is_loopback_host(str(self.server.server_address[0])):
            return True
        name = given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]
        return is_loopback_host(name)

    def answer(self, code: int, body: bytes, kind: str, **headers: str) -> None:
        """Send a whole answer of the content type `kind`; `headers` are more, with _ for -."""
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("http: %s", format % args)


class HttpEndpoint:
    """Serves requests until it is closed.

    Args:
        handler: answers them.
        what: what is served, for messages: "metrics".
        host: the name or address to listen at.
        port: 0: any free one.

    Attributes:
        url: `http://host:port`.

    Raises:
        OSError: the port cannot be bound; the message names the port and a remedy.
    """

    def __init__(self, handler: type[Request], what: str, host: str, port: int) -> None:
        class Served(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                if isinstance(error := sys.exception(), OSError):  # the client has hung up or is silent, which is its own affair
                    _log.debug("%s: %s: %s", what, client_address[0], error)
                else:
                    _log.exception("%s: a request of %s failed", what, client_address[0])

        try:
            self._http = Served((host, port), handler)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot serve {what} at {host}:{port}: {error.strerror}; choose another port, or 0 for any free port"
            ) from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name=f"echo-{what}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port. Idempotent."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
