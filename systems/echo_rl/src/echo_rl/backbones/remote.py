"""What the backbones behind HTTP share: keys, parallel calls and prices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from echo_rl.backbones.base import Backbone, BackboneError, BackboneUnavailable, Completion
from echo_rl.backbones.http import HttpApi
from echo_rl.backbones.prices import Prices

T = TypeVar("T")


class RemoteBackbone(Backbone):
    """A model behind an HTTP interface.

    Args:
        model: Its id for the server.
        url: The server's address.
        key: The key. By default it comes from the environment variable.
        variable: The name of the environment variable that has the key. An empty name means that no key is needed.
        name: The name of the backbone in errors. By default it is the model's id.
        prices: The prices of tokens. By default they come from the file that ECHO_RL_PRICES names.
        parallel: How many calls may be under way at once.
        **limits: ``timeout``, ``patience`` and ``attempts`` of ``HttpApi``.

    Raises:
        BackboneUnavailable: If the key is missing; the message names the variable.
    """

    def __init__(
        self,
        model: str,
        url: str,
        *,
        key: str | None = None,
        variable: str = "",
        name: str | None = None,
        prices: Prices | None = None,
        parallel: int = 8,
        **limits: Any,
    ) -> None:
        self.model, self.name = model, name or model
        self.prices = prices if prices is not None else Prices.load()
        key = key or (os.environ.get(variable) if variable else None)
        if variable and not key:
            raise BackboneUnavailable(f"{self.name} needs {variable}: set this environment variable to your key")
        self.api = HttpApi(url, self.headers(key) if key else {}, secret=bool(key), **limits)
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="echo-rl-backbone")

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry the key."""
        return {"Authorization": f"Bearer {key}"}

    def close(self) -> None:
        """End the threads, after the calls that are under way."""
        self._pool.shutdown(cancel_futures=True)

    def together(self, path: str, bodies: Sequence[dict[str, Any]], make: Callable[[Any], list[Completion]]) -> list[Completion]:
        """Send each body, side by side, and return what ``make`` reads in the answers, in order and with costs.

        The first error is raised, and calls that have not begun are dropped. An answer in which ``make`` misses something is a BackboneError.
        """
        futures = [self._pool.submit(self._ask, path, body, make) for body in bodies]
        try:
            return [self.priced(completion) for future in futures for completion in future.result()]
        finally:
            for future in futures:
                future.cancel()

    def _ask(self, path: str, body: dict[str, Any], make: Callable[[Any], list[Completion]]) -> list[Completion]:
        answer = self.api.post(path, body)
        found = _read(make, answer)
        for each in found:
            counts = vars(each.usage).values()
            if not isinstance(each.text, str) or not isinstance(each.finish, str) or not all(isinstance(count, int) and count >= 0 for count in counts):
                raise BackboneError(f"the server's answer has a wrong text, end or number of tokens: {str(answer)[:300]}")
        return found

    def pieces(self, events: Iterator[dict[str, Any]], text: Callable[[dict[str, Any]], str], ends: Callable[[dict[str, Any]], bool]) -> Iterator[str]:
        """Yield the texts of a stream's events. Raise BackboneError, with what came, if it breaks or ends without the event that ends it."""
        given, complete = "", False
        try:
            for event in events:
                piece = _read(text, event)
                given += piece
                complete = complete or ends(event)
                if piece:
                    yield piece
        except BackboneError as error:
            error.partial = given
            raise
        if not complete:
            raise BackboneError(f"{self.api.url} broke off: the stream ended early", partial=given)


def _read(read: Callable[[Any], T], answer: Any) -> T:
    try:
        return read(answer)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise BackboneError(f"the server's answer is not of its interface ({type(error).__name__}: {error}): {str(answer)[:300]}") from error
