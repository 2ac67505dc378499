"""Options of transports: what every listener and connection understands, and how they are read.

A transport declares its own as frozen dataclasses that derive from these two. Options come as
keywords (typed, from code or TOML) or as text behind the `?` of an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from .errors import ConfigError, did_you_mean

__all__ = ["ConnectOptions", "ListenOptions", "checked", "from_text"]

_T = TypeVar("_T")
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Options every listener understands; a transport's own `Options` derive from this."""

    timeout: float = 30.0  # seconds: default of waits
    auth: bool = True  # False: serve anybody who can connect, whatever `sink.tokens` says
    max_connections: int = 4096  # further clients are refused with code "busy"


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """Options every connection understands; a transport's own `ConnectOptions` derive from this."""

    timeout: float = 30.0  # seconds: default of every wait, and for how long to try to reconnect
    token: bytes | None = field(default=None, repr=False)  # None: the learner must not ask for one
    allow_unauthenticated: bool = False  # holding a token, still accept a learner asking for none
    client_id: str = ""  # 32 hex digits that outlive reconnects; "" draws a random one
    name: str = ""  # shown to people; "" is host:pid
    role: str = "worker"
    window_bytes: int = 64 << 20  # samples are kept until acknowledged: at most so many bytes ...
    max_inflight_msgs: int = 65536  # ... and so many samples; at either bound `send` waits
    reconnect: bool = True  # False: a lost connection is final


def checked(option_class: type[_T], options: Mapping[str, Any], owner: str) -> _T:
    """Build `option_class(**options)`; ConfigError for what it does not know, with a suggestion.

    What else a value must satisfy, the dataclass checks in `__post_init__` (ValueError).
    """
    known = [f.name for f in fields(option_class) if f.init]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) or f"; it has: {', '.join(known)}"
            raise ConfigError(f"{owner} has no option {name!r}{hint}")
    try:
        return option_class(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{owner}: {error}") from error


def from_text(option_class: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """Options written as text, converted to the types that `option_class` declares for them."""
    kinds = get_type_hints(option_class)
    return {name: _convert(name, kinds.get(name), text) for name, text in texts.items()}


def _convert(name: str, kind: Any, text: str) -> Any:
    try:
        if kind is bool:
            return _WORDS[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (KeyError, ValueError):
        raise ConfigError(f"option {name}={text} of the address is no {kind.__name__}") from None
