"""Every error that Echo raises, in one place.

All of them derive from `EchoError` *and* from the built-in exception that a caller would already
catch (`TimeoutError`, `ConnectionError`, ...), so that code written without knowledge of Echo
does the right thing. A message names what is wrong (leaf, key, plugin, address) and ends in the fix.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from .foreign_text import escaped
from .plural import counted

__all__ = [
    "AddressError",
    "CheckpointError",
    "ClosedError",
    "ConfigError",
    "ConnectionClosedError",
    "DuplicateKeyError",
    "EchoError",
    "EchoTimeoutError",
    "FileWriteError",
    "ForkError",
    "HandshakeRefused",
    "JobEnded",
    "LeaseError",
    "ListenError",
    "NoAddressError",
    "NoThreadError",
    "NotAnArrayError",
    "PluginConflict",
    "PluginError",
    "PluginNotFound",
    "PluginVersionError",
    "ProtocolError",
    "SecurityError",
    "SpecError",
    "UnknownKeyError",
    "UnknownTableError",
    "did_you_mean",
    "nearest",
]


class EchoError(Exception):
    """The root of all errors raised by Echo. As text, it has no control characters, because a part of it may be a peer's words."""

    def __str__(self) -> str:
        return escaped(super().__str__(), keep="\n\t")


class SpecError(EchoError, ValueError):
    """An example, a sample or a peer's spec does not fit; the message names the leaf."""


class NotAnArrayError(SpecError, TypeError):
    """A leaf of an example is no array; the message names the leaf. The original Echo raised a TypeError."""


class ConfigError(EchoError, ValueError):
    """A configuration value is unknown, missing or of the wrong type; the message names the file and the key."""


class AddressError(EchoError, ValueError):
    """Text that should be an address is not one; the message shows what was probably meant."""


class UnknownKeyError(EchoError, KeyError):
    """A sampler was asked about a key it does not hold; the message names the key."""

    def __str__(self) -> str:
        return escaped(Exception.__str__(self), keep="\n\t")  # KeyError would show the message in quotes


class CheckpointError(EchoError, ValueError):
    """A checkpoint is missing, damaged or belongs to another table; the message names the file or the difference."""


class UnknownTableError(EchoError, KeyError):
    """The server has no table of the given name; the message lists the tables it has."""

    __str__ = UnknownKeyError.__str__


class DuplicateKeyError(EchoError, ValueError):
    """A sampler was given a key it already holds; the message names the key."""


class PluginError(EchoError, ImportError):
    """A plugin exists but cannot be used: its import failed or it returned something odd."""


class PluginNotFound(PluginError):
    """No installed plugin has this name; the message gives the closest name or the install command."""


class PluginConflict(PluginError):
    """Two installed distributions provide the same plugin name."""


class PluginVersionError(PluginError):
    """A plugin was written for another plugin API, or its version is not the required one."""


class SecurityError(EchoError, PermissionError):
    """A token is missing, wrong or readable by other users, or an address would expose the learner."""


class ConnectionClosedError(EchoError, ConnectionError):
    """The peer is gone: the connection was closed or lost and could not be resumed, at least not before the call's timeout was over."""


class JobEnded(ConnectionClosedError):
    """The learner has ended the job on purpose (`Server.close()`, or the end of `with Server`), so the client does not try to connect again.

    `unacknowledged`: how many samples of the connection were not acknowledged (chunks of them, where samples vary in length). The message says it, too.
    """

    unacknowledged: int = 0

    @classmethod
    def at(cls, address: object, unacknowledged: int, in_words: str = "") -> JobEnded:
        """The error of a connection to the learner at `address`. `in_words` says what was not acknowledged if these are no samples: `Spec.counted`."""
        were = "was" if unacknowledged == 1 else "were"
        error = cls(f"the learner at {address} has ended the job; {in_words or counted(unacknowledged, 'sample')} {were} not acknowledged")
        error.unacknowledged = unacknowledged
        return error


class HandshakeRefused(ConnectionClosedError):
    """The server answered the handshake with a refusal.

    `code` is the machine-readable reason: "version", "role", "table", "busy", "shutdown" or "ended". A refused
    token raises SecurityError and a refused spec raises SpecError instead.
    """

    def __init__(self, message: str = "", code: str = "") -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[HandshakeRefused], tuple[str, str]]:
        # ConnectionError pickles only the arguments of its own __init__; without this method the
        # code would be lost on the way out of a worker process.
        return type(self), (str(self), self.code)


class ProtocolError(EchoError, ConnectionError, ValueError):
    """The peer broke the wire format, or is no Echo; the connection cannot be used any more. The original Echo raised a ValueError.

    One damaged byte can break a link as well. So a client that was served before dials again, and raises this only if several links in a row break."""


class ListenError(EchoError, OSError, RuntimeError):
    """An address cannot be listened on; the message names it and a remedy, and `errno` is set. The original Echo raised a RuntimeError."""


class FileWriteError(EchoError, OSError):
    """A file cannot be written, for example because the disk is full.

    The message names the file, a remedy and what is unharmed. `errno`, `strerror` and `filename` are set as in every OSError.
    """

    def __str__(self) -> str:
        return escaped(f"[Errno {self.errno}] {self.strerror}", keep="\n\t")  # OSError would add the name of the file once more


class NoAddressError(EchoError, RuntimeError):
    """A server has no address or no port: it is not started, is closed, or has no transport."""


class NoThreadError(EchoError, RuntimeError):
    """A thread cannot be started, because a limit of the user, the container or the machine is reached; the message says which limits to raise."""


class EchoTimeoutError(EchoError, TimeoutError):
    """A blocking call ran past its timeout although there is a connection; the message says who waited for whom. `Client(...)` that finds no
    learner raises it too.

    `inserted`: how many samples, from the front, a call that inserts several had inserted by then.
    `keys`: the keys of those, if `ReplayTable.submit_batch` raised it.
    `waits_for`: why the table of a server could not serve the request, if that server has said so. "" if it has not answered.
    """

    inserted: int = 0
    keys: Any = ()
    waits_for: str = ""


class LeaseError(EchoTimeoutError):
    """Every batch buffer is held by batches that are still alive.

    Keep fewer batches, copy them (`copy=True`), or give the server more `num_buffers`.
    """


class ClosedError(ConnectionClosedError, RuntimeError):
    """The object was used after its `close()`.

    It is also a ConnectionClosedError, because code that sends does not care which end closed. `inserted` and `keys` mean the same as in
    EchoTimeoutError.
    """

    inserted: int = 0
    keys: Any = ()


class ForkError(EchoError, RuntimeError):
    """The object was created before a fork and used in the child; create it in the child."""


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` was probably meant to be, ignoring case; None when no candidate is close."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    near = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[near[0]] if near else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """The end of an error message: `"; did you mean 'tcp'?"`, or `""` when no candidate is close."""
    near = nearest(word, candidates)
    return "" if near is None else f"; did you mean {near!r}?"
