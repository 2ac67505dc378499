"""Calls of JSON interfaces over HTTP: retries, limits of rate, and streams of events."""

from __future__ import annotations

import email.utils
import http.client
import ipaddress
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import Any
from urllib.parse import urlsplit

from echo_rl.backbones.base import BackboneError

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
MOST = 64 << 20
"""Bytes of an answer, or of one line of a stream, that are read at most."""

_BROKEN = (OSError, http.client.HTTPException)


class HttpApi:
    """One server.

    Args:
        url: The address, such as ``https://api.example.com/v1``. If there is a key, plain HTTP is allowed only to this machine.
        headers: The headers that are sent with every call.
        secret: Whether the headers contain a key.
        timeout: After how many seconds without a byte a call fails.
        patience: For how many seconds a call may wait between its attempts, all of them together. If a server wants a longer pause, the call fails.
        attempts: How many times a call is tried at most.

    Raises:
        ValueError: For a URL that is neither HTTP nor HTTPS, or that would send a key in the clear.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, secret: bool = True, timeout: float = 120.0, patience: float = 60.0, attempts: int = 6
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// URL")
        if parts.scheme == "http" and secret and not _here(parts.hostname):
            raise ValueError(f"{url!r} would send the key unencrypted; use https://")
        self.url, self.timeout, self.patience, self.attempts = url.rstrip("/"), timeout, patience, attempts
        self._headers = {"Content-Type": "application/json", "User-Agent": "echo-rl", **(headers or {})}
        # A redirect would carry the key elsewhere, and would turn POST into GET.
        self._opener = urllib.request.build_opener(_NoRedirect)

    def post(self, path: str, body: object) -> Any:
        """Send JSON and return the JSON of the answer. Raise BackboneError."""

        def whole() -> Any:
            with self._open(path, body) as response:
                data = response.read(MOST + 1)
                # Such a read returns what there is when the connection ends early.
                if len(data) <= MOST and response.length:
                    raise http.client.IncompleteRead(data, response.length)
            if len(data) > MOST:
                raise BackboneError(f"{self.url}{path} answered more than {MOST} bytes")
            try:
                return json.loads(data or b"{}")
            except ValueError:
                raise BackboneError(f"{self.url}{path} answered no JSON: {data[:200]!r}") from None

        return self._attempt(path, whole)

    def events(self, path: str, body: object) -> Iterator[dict[str, Any]]:
        """Send JSON and yield the JSON objects of a stream of server-sent events. It is asked again only while nothing has come.

        Raise BackboneError, also if the stream breaks; that it is complete is for the caller to see.
        """
        response = self._attempt(path, lambda: self._open(path, body))
        with response:
            while True:
                try:
                    line = response.readline(MOST + 1)
                except _BROKEN as error:
                    raise BackboneError(f"{self.url}{path} broke off: {_words(error)}") from error
                if not line:
                    return
                if len(line) > MOST:
                    raise BackboneError(f"{self.url}{path} sent a line of more than {MOST} bytes")
                data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if not data or data == b"[DONE]":
                    continue
                try:
                    event = json.loads(data)
                except ValueError:
                    raise BackboneError(f"{self.url}{path} sent an event that is no JSON: {data[:200]!r}") from None
                if not isinstance(event, dict):
                    raise BackboneError(f"{self.url}{path} sent an event that is no object: {data[:200]!r}")
                if "error" in event:
                    raise BackboneError(f"{self.url}{path} broke off: {_message(event)}")
                yield event

    def _open(self, path: str, body: object) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), self._headers, method="POST")
        return self._opener.open(request, timeout=self.timeout)

    def _attempt(self, path: str, call: Any) -> Any:
        waited = 0.0
        for attempt in range(1, self.attempts + 1):
            status: int | None = None
            asked: float | None = None
            try:
                return call()
            except urllib.error.HTTPError as error:
                with error:
                    status, asked = error.code, _retry_after(error.headers)
                    words = f"{status}: {_said(error)}"
            except _BROKEN as error:
                words = f"no whole answer: {_words(error)}"
            # Each pause is about twice the last one; chance keeps many callers from coming back together.
            pause = asked if asked is not None else min(30.0, 0.5 * 2 ** (attempt - 1)) * (0.5 + random.random() / 2)
            if status is not None and status not in RETRIED:
                raise BackboneError(f"{self.url}{path} refused, {words}", status)
            if attempt == self.attempts or waited + pause > self.patience:
                wish = f"; the server asks to come again in {asked:.0f} s" if asked is not None else ""
                raise BackboneError(f"{self.url}{path} failed {attempt} times, at last with {words}{wish}", status, asked)
            time.sleep(pause)
            waited += pause
        raise AssertionError("unreachable")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _retry_after(headers: Message) -> float | None:
    """Read retry-after-ms, or retry-after, which is a number of seconds or a date."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
            if 0 <= seconds < 1e9:
                return seconds
        except ValueError:
            pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _said(error: urllib.error.HTTPError) -> str:
    try:
        data = error.read(1 << 16)
    except _BROKEN:
        return str(error.reason)
    try:
        return _message(json.loads(data))
    except ValueError:
        return data[:200].decode(errors="replace") or str(error.reason)


def _message(found: Any) -> str:
    error = found.get("error", found) if isinstance(found, dict) else found
    return str(error.get("message", error) if isinstance(error, dict) else error)[:500]


def _words(error: BaseException) -> str:
    return str(getattr(error, "reason", "")) or str(error) or type(error).__name__
