"""Where a client's server is: `Client(resolve=...)`, and addresses whose scheme names a resolver instead of a transport."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.address import Address
from ..base.errors import AddressError, ConfigError, ConnectionClosedError, EchoError, EchoTimeoutError, PluginNotFound
from ..base.spare_threads import started
from ..base.waiting import Wait
from . import discovery
from .resolvers import NOT_UP

if TYPE_CHECKING:
    from ..wire.transport import Transport

__all__ = ["Reach", "Resolver", "reach"]

Resolver = Callable[[Address], "Address | str | None"]

PAUSES = (0.05, 1.0)  # seconds between two questions while the server is not up yet: at first, and at most
LEAST_SECONDS = 0.1  # a resolver gets so long even where the timeout is 0
AGAIN_SECONDS = 1.0  # how long one attempt to dial again waits for an answer; the next attempt goes on waiting for the same answer


class Reach(NamedTuple):
    """How to connect.

    Attributes:
        transport: the class to connect with.
        address: where the server is now.
        options: further options of the connection: `connect_timeout`, and `resolve`, if it is asked before every dial.
    """

    transport: type[Transport]
    address: Address
    options: dict[str, Any]


def reach(address: Address, resolve: Resolver | None, timeout: float) -> Reach:
    """Find the server of `address`. This and connecting to it, with the options that are returned, take at most `timeout` seconds.

    Raises:
        EchoTimeoutError: it is not up yet. PluginNotFound: no transport and no resolver has this scheme. ConfigError: `resolve` cannot be
            called, or `timeout` is not a number. ValueError: `timeout` is negative or NaN.
    """
    if resolve is not None and not callable(resolve):
        raise ConfigError(f"resolve must be callable as resolve(address), not {resolve!r}")
    if not isinstance(timeout, (int, float)):
        raise ConfigError(f"timeout must be a number of seconds, not {timeout!r}")
    if not timeout >= 0:  # a wait until NaN would never end
        raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")
    wait = Wait(timeout)
    if resolve is None:
        try:
            return Reach(discovery.transport_class(address.scheme), address, {"connect_timeout": timeout})
        except PluginNotFound:
            if not discovery.resolves(address.scheme):
                raise
            found_resolver: Resolver = discovery.resolver(address.scheme)
            resolve = found_resolver
    pause, ask = PAUSES[0], _Asking(resolve, address)
    while True:
        try:
            found = ask(max(wait.left(), LEAST_SECONDS))
            break
        except (ConnectionError, TimeoutError) as error:
            left = wait.left()
            if left <= 0:
                raise EchoTimeoutError(f"{address} was not found within {timeout:g} s: {error}") from error
            time.sleep(min(pause, left))
            pause = min(2 * pause, PAUSES[1])
    try:
        transport = discovery.transport_class(found.scheme)
    except PluginNotFound as error:
        raise PluginNotFound(f"{address}: its resolver returned an address that begins with {found.scheme}://, but {error}") from error
    return Reach(transport, found, {"connect_timeout": wait.left(), "resolve": _Again(ask, address, found.scheme)})


def _ask(resolve: Resolver, address: Address) -> Address:
    """Raises ConnectionClosedError if the server is not up yet, or the resolver fails. Mistakes in the address are raised as they are."""
    try:
        found = resolve(address)
    except EchoError:
        raise
    except Exception as error:
        raise ConnectionClosedError(f"its resolver failed: {type(error).__name__}: {error}") from error
    if found is None:
        raise ConnectionClosedError(f"it is not up yet ({next((why for one, why in NOT_UP if one is resolve), 'its resolver returned None')})")
    try:
        parsed = Address.parse(found)
    except AddressError as error:
        raise AddressError(f"{address}: its resolver returned no address: {error}") from None
    if parsed.scheme != address.scheme:
        return parsed
    return replace(parsed, options=address.options | parsed.options)  # those of the transport


class _Asking:
    """Asks a resolver on a thread of its own, because a resolver that does not return must not hold up its caller. Thread-safe.

    While a question is under way, all callers wait for its answer. So at most one thread waits for a resolver that never returns.
    """

    def __init__(self, resolve: Resolver, address: Address) -> None:
        self._resolve, self._address = resolve, address
        self._lock = threading.Lock()
        self._question: Future[Address] | None = None  # the one that is under way
        self._asked = 0.0

    def __call__(self, seconds: float) -> Address:
        """The answer, if it comes within so many seconds. Raises the errors of `_ask`, and ConnectionClosedError if there is no answer yet."""
        with self._lock:
            if (question := self._question) is None:
                question = Future()
                started(threading.Thread(target=self._answer, args=(question,), name="echo-resolver", daemon=True))
                self._question, self._asked = question, time.monotonic()
            asked = self._asked
        wait([question], min(seconds, threading.TIMEOUT_MAX))
        if not question.done():
            raise ConnectionClosedError(f"its resolver has not answered for {time.monotonic() - asked:.1f} s")
        return question.result()

    def _answer(self, question: Future[Address]) -> None:
        found: Address | None = None
        failed: BaseException | None = None
        try:
            found = _ask(self._resolve, self._address)
        except BaseException as error:  # the caller raises it, SystemExit too
            failed = error
        with self._lock:
            self._question = None
        if found is None:
            question.set_exception(failed)
        else:
            question.set_result(found)


class _Again:
    """What transports call before each dial, with the seconds that the dial may take."""

    def __init__(self, ask: _Asking, address: Address, scheme: str) -> None:
        self._ask, self._address, self._scheme = ask, address, scheme

    def __call__(self, seconds: float) -> Address:
        found = self._ask(min(seconds, AGAIN_SECONDS))
        if found.scheme != self._scheme:
            raise ConnectionClosedError(f"{self._address} is now {found}, and this client connects over {self._scheme}; make a new one")
        return found
