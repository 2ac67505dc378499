"""Layers of a configuration: several sources are merged key by key, and each value keeps its origin.

A layer is flat: it maps a path such as `("server", "transport", "port")` to a value. Tables merge
key by key. Two things replace the earlier value as a whole instead: a transport or sampler that is
written as one string (an address, a name) or as a list, and a table with another `type`. The options
of one plugin mean nothing to another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.address import Address
from ..base.errors import AddressError, ConfigError
from ..base.option_reader import Text, read_toml_value
from ..base.toml import parse_toml
from ..security.tokens import Token, check_private

__all__ = ["CHOICES", "Layer", "from_command_line", "from_environment", "from_file", "from_mapping"]

Key = tuple[str, ...]

# Paths where a `type` chooses a plugin. Their values may be a string, a table or (for transport) a list.
CHOICES: tuple[Key, ...] = (("server", "transport"), ("server", "sampler"))

# A list of tables. In each table, these keys may hold a name instead of a table with a `type`.
TABLES: Key = ("server", "tables")
_NAMED = ("sampler", "remover", "rate_limiter", "items")

_TOKEN: Key = ("security", "token")
_EITHER = {_TOKEN: ("security", "token_file"), ("security", "token_file"): _TOKEN}


class Layer:
    """The values of one source, or of several merged sources, by path; each value has its origin."""

    def __init__(self) -> None:
        self.values: dict[Key, Any] = {}
        self.origins: dict[Key, str] = {}
        self._replaced: set[Key] = set()

    def put(self, path: Key, value: Any, origin: str) -> None:
        """Set `path` to a value or a whole table; it overrides values that were put earlier."""
        if path in CHOICES:
            value = _expand(path, value, origin)
            if not isinstance(value, Mapping) or isinstance(value, _Whole):
                self.drop(path)
                self._replaced.add(path)
        elif path[:2] in CHOICES and len(path) == 3 and path[2].isdigit():
            value = _expand(path, value, origin)
        elif path == TABLES:
            value = _numbered(value)
            if not isinstance(value, Mapping) or isinstance(value, _Whole):
                self.drop(path)
                self._replaced.add(path)
        elif path[:2] == TABLES and len(path) == 4 and path[3] in _NAMED:
            if isinstance(value, Text) and value.strip()[:1] == "{":
                value = read_toml_value(value)
            if isinstance(value, str):
                value = {"type": str(value.strip())}
        if isinstance(value, Mapping) and (value or len(path) < 2):
            for key, item in value.items():
                self.put((*path, str(key)), item, origin)
            return
        if path[-1] == "token":  # [security] has a token, and a transport may have its own
            value = _token(path, value, origin)
        self._set(path, value, origin)

    def merge(self, later: Layer) -> None:
        """Merge `later` into this layer; its values win."""
        for path in later._replaced:
            self.drop(path)
        for path in later.values:
            if path in _EITHER and _EITHER[path] not in later.values:
                self.drop(_EITHER[path])
            if path[-1] == "type" and self._is_other_plugin(path, later.values[path]):
                self.drop(path[:-1])
        for path, value in later.values.items():
            self._set(path, value, later.origins[path])

    def drop(self, path: Key) -> None:
        """Remove the value at `path` and everything below it."""
        for other in [other for other in self.values if other[: len(path)] == path]:
            del self.values[other], self.origins[other]

    def nested(self) -> dict[str, Any]:
        """The values as nested tables."""
        root: dict[str, Any] = {}
        for path, value in self.values.items():
            table = root
            for key in path[:-1]:
                table = table.setdefault(key, {})
            table[path[-1]] = value
        return root

    def dotted_origins(self) -> dict[str, str]:
        """The origin of each value and of each table (its last contributor), by dotted key."""
        found = {}
        for path, origin in self.origins.items():
            for length in range(1, len(path) + 1):
                found[".".join(path[:length])] = origin
        return found

    def _is_other_plugin(self, path: Key, name: Any) -> bool:
        if path[:2] == TABLES:
            return len(path) == 5 and self.values.get(path, name) != name
        if path[:2] not in CHOICES:
            return False
        below = [other[2] for other in self.values if other[:2] == path[:-1] and len(other) > 2]
        is_list = any(key.isdigit() for key in below)
        return is_list or self.values.get(path, name) != name

    def _set(self, path: Key, value: Any, origin: str) -> None:
        self.drop(path)
        for length in range(1, len(path)):
            if path[:length] in self.values:  # a table replaces a plain value
                self.drop(path[:length])
        self.values[path] = value
        self.origins[path] = origin


class _Whole(dict[str, Any]):
    """A table that was made from a string or a list: it replaces the earlier table instead of merging with it."""


def from_file(path: str | os.PathLike[str]) -> Layer:
    """Read a TOML file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML; the message names the line.
        SecurityError: the file holds a token and other users can read it.
    """
    file = Path(path).expanduser()
    if file.suffix in (".yaml", ".yml", ".json"):
        raise ConfigError(f"{path}: this file is not TOML; read it and pass the mapping instead of the path")
    try:
        with open(file, "rb") as stream:
            data = stream.read()
            status = os.fstat(stream.fileno())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check the path") from error
    layer = from_mapping(parse_toml(data, str(path)), str(path))
    if any(key[-1] == "token" for key in layer.values):
        check_private(file, status)
    return layer


def from_mapping(mapping: Mapping[str, Any], origin: str) -> Layer:
    """The layer of a mapping of sections. A key may also be dotted: `{"server.batch_size": 64}`."""
    layer = Layer()
    for key, value in mapping.items():
        layer.put(tuple(str(key).split(".")), value, origin)
    return layer


def from_environment(env: Mapping[str, str]) -> Layer:
    """The layer of variables such as ECHO_SERVER__TRANSPORT__PORT; variables without `__` are not configuration."""
    layer = Layer()
    found = [name for name in env if name.startswith("ECHO_") and "__" in name[len("ECHO_") :]]
    # Shorter paths come first: a whole transport, then its single options.
    for name in sorted(found, key=lambda name: (name.count("__"), name)):
        path = tuple(name.removeprefix("ECHO_").lower().split("__"))
        origin = f"environment variable {name}"
        if not all(path):
            raise ConfigError(f"{origin}: a variable of the configuration must be written ECHO_SECTION__KEY")
        layer.put(path, Text(env[name]), origin)
    return layer


def from_command_line(items: Iterable[str]) -> Layer:
    """The layer of items such as `server.batch_size=64`; leading dashes are ignored.

    Raises:
        ConfigError: an item has another form, or would show the token to other users.
    """
    layer = Layer()
    for item in items:
        key, equals, value = item.lstrip("-").partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            raise ConfigError(f"command line: {item!r} must be written like server.batch_size=64")
        if path[-1] == "token":
            raise ConfigError(
                f"command line: {'.'.join(path)} would be visible to every user of this machine; "
                "set ECHO_TOKEN, or give security.token_file"
            )
        layer.put(path, Text(value), "command line")
    return layer


def _expand(path: Key, value: Any, origin: str) -> Any:
    """Turn the choice of a plugin (an address, a name, a table or a list) into a table with a `type`."""
    where = ".".join(path)
    if isinstance(value, Text) and value.strip()[:1] in ("{", "["):
        value = read_toml_value(value)
    if isinstance(value, Text) and value.strip().lower() in ("", "none", "null"):
        value = None
    if isinstance(value, Address) or (isinstance(value, str) and set(value) & set(":/")):
        return _Whole(_from_address(value, where, origin))
    if isinstance(value, str):
        return _Whole(type=str(value.strip()))
    if isinstance(value, Sequence) and len(path) == 2 and not isinstance(value, bytes):
        return _Whole({str(index): item for index, item in enumerate(value)})
    if isinstance(value, Mapping) and not value:
        raise ConfigError(f'{origin}: {where}: the table is empty; it needs a key "type"')
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(
            f"{origin}: {where}: must be a name, an address or a table, not {value!r}"
        )
    return value


def _numbered(value: Any) -> Any:
    """Turn a list of tables into a table with numbers as keys. A table with numbers as keys, which changes single keys, stays unchanged."""
    value = read_toml_value(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return _Whole({str(index): item for index, item in enumerate(value)})
    return value


def _from_address(value: str | Address, where: str, origin: str) -> dict[str, Any]:
    try:
        address = Address.parse(value)
    except AddressError as error:
        raise ConfigError(f"{origin}: {where}: {error}") from error
    place = {"host": address.host, "port": address.port, "path": address.path}
    table = {key: item for key, item in place.items() if item not in ("", None)}
    for key, item in address.options.items():
        if key in table or key == "type":
            raise ConfigError(f"{origin}: {where}: option {key!r} of {address} is given twice")
        table[key] = Text(item)
    return {"type": address.scheme, **table}


def _token(path: Key, value: Any, origin: str) -> Token | None:
    if value is None or isinstance(value, Token):
        return value
    if isinstance(value, bytes):
        return Token(value)
    if isinstance(value, str) and value.strip():
        return Token.from_text(value.strip())
    raise ConfigError(f"{origin}: {'.'.join(path)}: must be non-empty text")
