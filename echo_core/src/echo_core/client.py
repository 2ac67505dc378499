"""The worker's side: samples up, weights down, whatever the transport."""

from __future__ import annotations

from typing import Any

from . import plugins, security
from .address import Address
from .errors import ConfigError
from .spec import Spec
from .weights import Weights

__all__ = ["Client"]


class Client:
    """A worker's connection to a learner.

    Args:
        address: where the learner listens, such as `"tcp://learner:5555"` (or an `Address`); the scheme selects the transport.
        example: a pytree like the server's: one sample.
        name: how people see this worker; None is host:pid.
        timeout: default of every wait in seconds, and for how long an unreachable learner is tried again.
        token: the shared secret; None takes ECHO_TOKEN, ECHO_TOKEN_FILE or the user's token file. It is not pickled.
        auth: False connects without a token, to a server that asks for none.
        **options: the transport's own, such as `window_bytes`.

    Raises:
        SpecError: the example does not match the server's, naming the leaf.
        SecurityError: token missing or refused. PluginError: the transport is not installed.
        EchoTimeoutError: the learner could not be reached in time.

    All calls are thread-safe, take `timeout=` and can be interrupted by Ctrl-C. A client can be pickled: the copy connects anew. After a
    fork the child must make its own.
    """

    def __init__(
        self,
        address: str | Address,
        example: Any,
        *,
        name: str | None = None,
        timeout: float = 30.0,
        token: str | bytes | None = None,
        auth: bool = True,
        **options: Any,
    ) -> None:
        self.address = Address.parse(address)
        self.spec = Spec.from_example(example)
        self._pickled = (type(self), str(self.address), example, {"name": name, "timeout": timeout, "auth": auth, **options})
        transport = plugins.transport_class(self.address.scheme)
        self._connection = connection = transport.connect(
            self.address,
            self.spec,
            name=name or "",
            timeout=timeout,
            token=security.find_token(token) if auth else None,
            **options,
        )
        # Bound once: one more Python call per sample would cost a third of a send.
        self.send = connection.send  # type: ignore[method-assign]
        self.send_batch = connection.send_batch  # type: ignore[method-assign]

    @classmethod
    def from_config(cls, source: Any, example: Any = None, /, **overrides: Any) -> Client:
        """A client as a configuration says; see `Server.from_config`.

        Raises:
            ConfigError: unknown or ill-typed keys, with file, key and suggestion.
        """
        from .config import client_arguments

        arguments = client_arguments(source, overrides)
        if example is None:
            raise ConfigError("Client.from_config needs the example pytree: Client.from_config('echo.toml', example)")
        return cls(arguments.pop("address"), example, **arguments)

    # ---- experience up ----------------------------------------------------------------------------------------------------

    def send(self, sample: Any, timeout: float | None = None) -> None:
        """Take over one sample; its arrays may be changed at once. It is sent now if the link is idle, with others if it is busy.

        Raises:
            SpecError: it does not match, naming the leaf; nothing was taken.
            EchoTimeoutError: the window of unacknowledged samples stayed full, saying who waits for whom.
            ConnectionClosedError: the learner is gone for longer than `timeout`, or the client is closed.
        """
        self._connection.send(sample, timeout)

    def send_batch(self, samples: Any, timeout: float | None = None) -> None:
        """Take over N samples at once: the same pytree with leaves of shape `(N, *leaf.shape)`. Raises as `send`."""
        self._connection.send_batch(samples, timeout)

    def reserve(self, timeout: float | None = None) -> Any:
        """A slot of the learner's store to be filled in place, without any copy; for transports that share its memory.

            with client.reserve() as slot:
                slot.sample["obs"][...] = ...    # the example's pytree of arrays over the learner's memory
                slot.commit()                    # leaving the block without it gives the slot back

        Reserved slots have no order among the samples of `send`. Commit, or abort, after dropping every array of the slot.

        Raises:
            EchoError: this transport shares no memory (naming those that do), or too many slots are reserved.
            EchoTimeoutError: the store stayed full. ConnectionClosedError, ClosedError: as `send`.
        """
        return self._connection.reserve(timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Hand everything taken over to the network now."""
        self._connection.flush(timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Return when everything taken over is committed in the learner's store."""
        self._connection.wait(timeout)

    # ---- weights down -----------------------------------------------------------------------------------------------------

    def weights(self, timeout: float | None = None, newer_than: int | None = None, like: Any = None) -> Weights:
        """The newest whole version the learner published.

        Args:
            timeout: seconds to wait for one; None is the client's default.
            newer_than: wait for a version above this one; None takes any.
            like: an example pytree, for structures with namedtuples or dataclasses.

        Returns:
            `Weights(params, version, digest)`; the arrays are read-only and shared with no later version.

        Raises:
            EchoTimeoutError: none in time. SpecError: `like` does not match, naming the leaf.
        """
        return self._connection.weights(timeout, newer_than, like)

    # ---- looking, and the end ---------------------------------------------------------------------------------------------

    def request(self, op: str, body: dict[str, Any] | None = None, blob: bytes = b"", timeout: float | None = None) -> tuple[dict[str, Any], bytes]:
        """Ask the server for an operation by name, and wait for its answer `(body, blob)`. Raises EchoError with the server's words."""
        return self._connection.request(op, body or {}, blob, timeout)

    def server_stats(self, timeout: float | None = None) -> dict[str, Any]:
        """`Server.stats()` of the learner."""
        return self.request("stats", timeout=timeout)[0]

    def stats(self) -> dict[str, Any]:
        """What this connection counted, as a flat dict."""
        return self._connection.stats()

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was taken over, then end. Idempotent.

        Raises:
            EchoTimeoutError, ConnectionClosedError: saying how many samples were not acknowledged; the client is closed all the same.
        """
        self._connection.close(timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        try:  # the block's own error matters more than what could not be delivered
            self.close(0 if issubclass(kind, KeyboardInterrupt) else None)
        except (ConnectionError, TimeoutError):
            pass

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnect, self._pickled

    def __repr__(self) -> str:
        return f"<Client {self.address}>"


def _reconnect(cls: type[Client], address: str, example: Any, options: dict[str, Any]) -> Client:
    client = cls.__new__(cls)
    Client.__init__(client, address, example, **options)
    return client
