"""Serves the live view as a web page: one static page, and one JSON endpoint that requires a token."""

from __future__ import annotations

import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from echo_core.base.address import is_loopback_host

from .view import Snapshot

__all__ = ["WebView"]


class WebView:
    """Serves the newest snapshot until it is closed.

    The token stands behind the # of the link, a part that browsers do not send. The page adds it to each request for statistics. The
    page itself is the same for everybody and contains no statistics.

    Attributes:
        url: the link, including the token.

    Raises:
        OSError: the port cannot be bound; the message names the port and a remedy.
    """

    def __init__(self, address: str, token: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._newest = json.dumps({"address": address}).encode()
        self._address = address
        page = files(__package__).joinpath("top.html").read_bytes()
        view = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0  # seconds that it waits for the request of a silent browser

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                name = self.headers.get("Host", "").rpartition(":")[0].strip("[]")
                if is_loopback_host(host) and not is_loopback_host(name):
                    # The request comes from another site's page, whose name was made to resolve to this machine (DNS rebinding).
                    self._answer(403, b"ask for this page by 127.0.0.1\n", "text/plain")
                elif path == "/":
                    self._answer(200, page, "text/html; charset=utf-8")
                elif path != "/stats.json":
                    self._answer(404, b"there is / and /stats.json\n", "text/plain")
                elif not hmac.compare_digest(self.headers.get("Authorization", "").encode(), f"Bearer {token}".encode()):
                    self._answer(
                        401, b'{"error": "the token is missing or wrong: open the whole link that echoctl printed"}', "application/json"
                    )
                else:
                    self._answer(200, view._newest, "application/json")

            def _answer(self, code: int, body: bytes, kind: str) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header(
                    "Content-Security-Policy",
                    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'",
                )
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        try:
            self._http = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot serve a page at {host}:{port}: {error.strerror}; choose another port, or 0 for any free port"
            ) from error
        self._http.daemon_threads = True
        self.url = f"http://{host}:{self._http.server_address[1]}/#{token}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="echo-web", daemon=True)
        self._thread.start()

    def show(self, snapshot: Snapshot) -> None:
        """Serve this snapshot from now on."""
        self._newest = json.dumps({"address": self._address, **snapshot.to_json()}).encode()

    def end(self, reason: str) -> None:
        """Record why the server is gone. The page shows this reason as long as it is open."""
        self._newest = json.dumps({"address": self._address, "error": reason}).encode()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
