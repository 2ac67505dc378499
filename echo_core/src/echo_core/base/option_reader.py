"""Turns a table of a configuration into a dataclass and checks every key and type.

This is the second phase of reading a configuration: the plugin that a `type` selected describes
its options as a plain standard-library dataclass, and `build_options` does the rest.
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from .errors import ConfigError, did_you_mean

__all__ = ["Text", "build_options", "default_options", "fault_of_options", "is_dataclass", "is_required", "kind_of", "option_fields", "read_toml_value"]

_T = TypeVar("_T")

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


class Text(str):
    """A value that could only be given as text (environment, command line, address).

    It is converted to the type of the field. A plain `str` is never converted to a number.
    """

    __slots__ = ()


def build_options(
    cls: type[_T],
    mapping: Mapping[str, Any],
    where: str = "",
    origins: Mapping[str, str] | None = None,
) -> _T:
    """Build the dataclass `cls` from `mapping`, converting and checking every value.

    Field types may be str, int, float, bool, None, bytes, Path, Literal, unions and Optional,
    tuple, list, dict with str keys, another dataclass (from a nested table), and Any. An int
    becomes a float where the field is a float. Nothing else is converted, except that `Text` is
    read as the field's type. A value that already has the field's class is taken as it is.
    The value of a field with `repr=False` is a secret and never part of a message.

    Args:
        cls: a dataclass; its `__post_init__` may raise ValueError or TypeError for values that
            are out of range.
        mapping: key to value, as TOML or any other mapping gives them.
        where: the table that the keys belong to, for error messages: `"server.transport"`.
        origins: maps full dotted keys (`"server.transport.port"`) to where each value was given.

    Raises:
        ConfigError: a key is unknown or missing, or a value does not fit; the message names origin and key.
    """
    return _Reader(origins or {}).table(cls, mapping, where)


def read_toml_value(value: Any) -> Any:
    """Read `Text` as a TOML value, or as plain text if it is not valid TOML; other values are returned unchanged."""
    if not isinstance(value, Text):
        return value
    try:
        (read,) = tomllib.loads(f"value = {value}").values()
    except (ValueError, RecursionError):  # ValueError: not TOML, a number of thousands of digits, or a line break and a second key
        return str(value)
    return read


@dataclasses.dataclass(frozen=True)
class _Reader:
    origins: Mapping[str, str]

    def table(self, cls: type[_T], mapping: Mapping[str, Any], where: str) -> _T:
        fields = option_fields(cls)
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            path = _join(where, key)
            if key not in fields:
                raise self.error(path, f"unknown key{_suggest(str(key), fields)}")
            field, hint = fields[key]
            values[key] = self.value(hint, value, path, secret=not field.repr)
        for name, (field, hint) in fields.items():
            if name not in values and is_required(field):
                kind = _describe(hint)
                place = f" to [{where}]" if where else ""
                raise self.error(_join(where, name), f"missing; add {name} = ... ({kind}){place}")
        try:
            return cls(**values)
        except ConfigError:
            raise
        except (TypeError, ValueError) as error:
            # A range check of the dataclass. When it names one key, say where that one came from.
            named = [name for name in values if name in str(error).split()]
            path = _join(where, named[0]) if len(named) == 1 else where
            raise self.error(path, str(error)) from error

    def value(self, hint: Any, value: Any, path: str, secret: bool = False) -> Any:
        try:
            return self.convert(hint, value, path)
        except _Mismatch:
            shown = repr(str(value) if isinstance(value, Text) else value)
            if secret:
                shown = f"{type(value).__name__} (not shown)"
            advice = self.advice(hint, value)
            raise self.error(path, f"must be {_describe(hint)}, not {shown}{advice}") from None

    def convert(self, hint: Any, value: Any, path: str) -> Any:
        kind, members = kind_of(hint)
        if kind is Union:
            return self.union(members, value, path)
        if kind is Literal:
            return _literal(members, value)
        if kind in (tuple, list):
            return self.sequence(kind, members, value, path)
        if kind in (dict, Mapping):
            return self.mapping(members, value, path)
        if is_dataclass(kind) and not isinstance(value, kind):
            table = read_toml_value(value)
            if not isinstance(table, Mapping):
                raise _Mismatch
            return self.table(kind, table, path)
        return _scalar(kind, value)

    def union(self, members: tuple[Any, ...], value: Any, path: str) -> Any:
        # Any text fits `str`, so every other member is tried first.
        ordered = sorted(members, key=lambda member: member is str)
        for member in ordered if isinstance(value, Text) else members:
            try:
                return self.convert(member, value, path)
            except _Mismatch:
                continue
        raise _Mismatch

    def sequence(self, kind: type, members: tuple[Any, ...], value: Any, path: str) -> Any:
        value = _items(value)
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise _Mismatch
        if kind is tuple and members and members[-1] is not Ellipsis:
            if len(value) != len(members):
                raise _Mismatch
        else:
            members = (members[0] if members else Any,) * len(value)
        pairs = enumerate(zip(members, value, strict=True))
        return kind(self.value(member, item, f"{path}[{i}]") for i, (member, item) in pairs)

    def mapping(self, members: tuple[Any, ...], value: Any, path: str) -> dict[str, Any]:
        value = read_toml_value(value)
        if not isinstance(value, Mapping):
            raise _Mismatch
        member = members[1] if members else Any
        return {str(k): self.value(member, v, _join(path, k)) for k, v in value.items()}

    def advice(self, hint: Any, value: Any) -> str:
        """How to correct the most common mismatch, a number or a boolean in quotes."""
        if isinstance(value, str) and not isinstance(value, Text):
            try:
                unquoted = self.convert(hint, Text(value), "")
            except (_Mismatch, ConfigError):
                return ""
            return "; write it without quotes" if isinstance(unquoted, (int, float)) else ""
        return ""

    def error(self, path: str, problem: str) -> ConfigError:
        origin = self.origins.get(path) or self.origins.get(path.partition("[")[0])
        return ConfigError(": ".join(part for part in (origin, path, problem) if part))


class _Mismatch(Exception):
    """The value does not have this type; another member of a union may still accept it."""


def _scalar(kind: Any, value: Any) -> Any:
    text = value.strip() if isinstance(value, Text) else None
    if kind in (Any, object):
        return read_toml_value(value)
    if kind in (None, type(None)):
        if value is None or (text is not None and text.lower() in ("none", "null")):
            return None
    elif kind is bool:
        if isinstance(value, bool):
            return value
        if text is not None and text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
    elif kind in (int, float):
        if text is not None:
            try:
                return int(text) if kind is int else float(text)
            except ValueError:
                raise _Mismatch from None
        wanted = numbers.Integral if kind is int else numbers.Real
        if isinstance(value, wanted) and not isinstance(value, bool):
            return kind(value)
    elif kind is str:
        if isinstance(value, str):
            return str(value)
    elif kind is bytes and text is not None:
        return text.encode()
    elif kind is Path:
        if isinstance(value, (str, os.PathLike)) and os.fspath(value):
            return Path(value).expanduser()
    elif isinstance(kind, type) and isinstance(value, kind):
        return value
    raise _Mismatch


def _literal(choices: tuple[Any, ...], value: Any) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
        if isinstance(value, Text):
            try:
                if _scalar(type(choice), value) == choice:
                    return choice
            except _Mismatch:
                continue
    raise _Mismatch


def _items(value: Any) -> Any:
    """Read `Text` as a list: a TOML array, or items separated by commas."""
    if not isinstance(value, Text):
        return value
    if value.lstrip().startswith("["):
        return read_toml_value(value)
    return [Text(item.strip()) for item in value.split(",") if item.strip()]


def option_fields(cls: type[Any]) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """The fields of a dataclass of options that a configuration may give, each with its type."""
    hints = typing.get_type_hints(cls)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(cls) if field.init}


def kind_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type and what is between its brackets; `Union` for `int | str` too."""
    kind = typing.get_origin(hint) or hint
    return Union if kind is types.UnionType else kind, typing.get_args(hint)


def is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def default_options(cls: type[Any], given: Iterable[str]) -> dict[str, Any]:
    """The default of every option of the dataclass `cls` that is not in `given`; required options and secrets have none here."""
    made = {}
    for name, (field, _) in option_fields(cls).items():
        if name in given or not field.repr:
            continue
        if field.default is not dataclasses.MISSING:
            made[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            made[name] = field.default_factory()
    return made


def fault_of_options(owner: type[Any], name: str, base: type[Any] | None = None) -> str | None:
    """What is wrong with the class of options `owner.<name>`, and how to mend it; None if nothing is.

    A class that derives from a dataclass counts as one itself, but its own fields do not, unless it is decorated too.
    """
    cls = getattr(owner, name)
    where = f"{owner.__name__}.{name}"
    if not isinstance(cls, type):
        return f"{where} is {cls!r}; it must be a dataclass"
    decorated = "__dataclass_fields__" in vars(cls)
    if not decorated and (not dataclasses.is_dataclass(cls) or inspect.get_annotations(cls)):
        return f"{where} is the class {cls.__name__}, which is no dataclass; write @dataclass(frozen=True, kw_only=True) above it"
    if base is not None and not issubclass(cls, base):
        return f"{where} is the class {cls.__name__}, which lacks the options that Echo itself reads; derive it from {base.__name__}"
    return None


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _suggest(key: str, known: Mapping[str, Any]) -> str:
    hint = did_you_mean(key, known)
    if hint:
        return hint
    return f"; known here: {', '.join(known)}" if known else "; there are no options here"


_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    bytes: "bytes",
    Path: "a path",
    type(None): "none",
}


def _describe(hint: Any) -> str:
    """Describe a type in the words of a person who writes a configuration."""
    kind, members = kind_of(hint)
    if kind is Union:
        shown = [_describe(member) for member in members if member is not type(None)]
        return " or ".join(shown + ["none"] * (type(None) in members))
    if kind is Literal:
        return " or ".join(repr(choice) for choice in members)
    if kind is tuple and members and members[-1] is not Ellipsis:
        return f"a list of {len(members)} ({', '.join(map(_describe, members))})"
    if kind in (tuple, list):
        return f"a list ({_describe(members[0])} each)" if members else "a list"
    if kind in (dict, Mapping) or is_dataclass(kind):
        return "a table"
    return _WORDS.get(kind, getattr(kind, "__name__", "a value"))
