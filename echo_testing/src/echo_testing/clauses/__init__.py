"""The clauses of the transport contract, by subject; `TransportContract` inherits them all.

Clauses marked `@carrier` are those whose outcome may depend on how bytes travel. A variant of a transport is tested with these alone
(`TransportContract.variant`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["carrier", "is_carrier"]

_T = TypeVar("_T", bound=Callable[..., Any])
_marked: set[Any] = set()


def carrier(clauses: _T) -> _T:
    """Mark a clause, or every clause of a class: its outcome may depend on how bytes travel, or on the form of the address."""
    if isinstance(clauses, type):
        _marked.update(value for name, value in vars(clauses).items() if name.startswith("test_"))
    else:
        _marked.add(clauses)
    return clauses


def is_carrier(clause: object) -> bool:
    """Whether the clause is marked."""
    return clause in _marked
