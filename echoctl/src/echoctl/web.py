"""Serves the live view as a web page: one static page, and one JSON endpoint that requires a token."""

from __future__ import annotations

import hmac
import json
from importlib.resources import files

from .http_endpoint import HttpEndpoint, Request
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

        class Handler(Request):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if not self.asks_for_this_machine():
                    self.reply(403, b"ask for this page by 127.0.0.1\n", "text/plain")
                elif path == "/":
                    self.reply(200, page, "text/html; charset=utf-8")
                elif path != "/stats.json":
                    self.reply(404, b"there is / and /stats.json\n", "text/plain")
                elif not hmac.compare_digest(self.headers.get("Authorization", "").encode(), f"Bearer {token}".encode()):
                    self.reply(
                        401, b'{"error": "the token is missing or wrong: open the whole link that echoctl printed"}', "application/json"
                    )
                else:
                    self.reply(200, view._newest, "application/json")

            def reply(self, code: int, body: bytes, kind: str) -> None:
                policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
                self.answer(code, body, kind, Cache_Control="no-store", Content_Security_Policy=policy, X_Content_Type_Options="nosniff")

        self._endpoint = HttpEndpoint(Handler, "a page", host, port)
        self.url = f"{self._endpoint.url}/#{token}"

    def show(self, snapshot: Snapshot) -> None:
        """Serve this snapshot from now on."""
        self._newest = json.dumps({"address": self._address, **snapshot.to_json()}).encode()

    def end(self, reason: str) -> None:
        """Record why the server is gone. The page shows this reason as long as it is open."""
        self._newest = json.dumps({"address": self._address, "error": reason}).encode()

    def close(self) -> None:
        self._endpoint.close()
