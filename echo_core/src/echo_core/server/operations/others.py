"""Operations that are not Echo's own: what may be served (`Server.serve`), and what a handler may return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.errors import ConfigError
from ...security.tokens import needs

if TYPE_CHECKING:
    from .operation import Operation

__all__ = ["check_answer", "served"]


def served(op: str, handler: Callable[..., Any], roles: Iterable[str]) -> Operation:
    """The operation for `Server.serve`. Raises ConfigError, which says what is wrong with the arguments."""
    if not isinstance(op, str) or not all(op.partition("/")):
        raise ConfigError(f"the name of an operation of your own must be text of the form 'plugin/operation', not {op!r}")
    if not callable(handler):
        raise ConfigError(f"the handler of {op!r} must be callable as handler(server, peer, body, blob), not {handler!r}")
    if isinstance(roles, str):
        raise ConfigError(f"roles must be several names, not {roles!r}; write roles=({roles!r},)")
    try:
        return needs(*roles)(partial(handler))  # a partial has attributes of its own, which a bound method has not
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the roles of {op!r} are not valid: {error}") from error


def check_answer(op: str, answer: Any) -> None:
    """Raise TypeError if a handler returned neither an answer nor a `Later`."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], dict):
        raise TypeError(f"the handler of {op!r} returned {answer!r:.200}; it must return (body, blob), with a dict as body, or a Later")
