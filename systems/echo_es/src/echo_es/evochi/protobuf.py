"""The wire format of protocol buffers, as far as evochi.v1 needs it.

Each message is a NamedTuple, and a table of `Field`s says how it travels. The encoder writes the bytes that Google's encoder writes. The
decoder accepts what Google's decoder accepts: it skips unknown fields, merges submessages that come twice, and lets the last scalar win.
Whatever is malformed raises CodecError. No length is believed before the bytes are there, so a message never needs much more memory than
its bytes: floats stay a float32 array, and a message has at most `MAX_ITEMS` repeated submessages.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np

from echo_core import EchoError

__all__ = ["MAX_ITEMS", "CodecError", "Field", "decode", "encode", "table"]

MAX_ITEMS = 1 << 16  # repeated submessages in one message
MAX_DEPTH = 100  # nested groups; Google's decoder has the same limit

VARINT, EIGHT, LENGTH, GROUP, END_GROUP, FOUR = range(6)
_WIRE = {"int32": VARINT, "int64": VARINT, "bool": VARINT}  # all other kinds are LENGTH
_EMPTY: dict[str, Any] = {"int32": 0, "int64": 0, "bool": False, "string": "", "bytes": b"", "messages": ()}  # None for all others
_BITS = {"int32": 32, "int64": 64}
_NO_FLOATS = np.empty(0, "<f4")
_NO_FLOATS.flags.writeable = False

M = TypeVar("M", bound=tuple[Any, ...])


class CodecError(EchoError):
    """The bytes are not the message that they should be."""


class Field(NamedTuple):
    """How one attribute of a message travels. `kind` is int32, int64, bool, string, bytes, optional bytes, floats, message or messages."""

    number: int
    kind: str
    of: type[Any] | None = None  # the class of a submessage
    oneof: bool = False  # at most one field of the message that has this set is present


_tables: dict[type[Any], tuple[list[tuple[str, Field, bytes]], dict[int, tuple[str, Field]]]] = {}


def table(message: type[Any], *fields: Field) -> None:
    """Say how the attributes of `message`, a NamedTuple, travel, in their order. The numbers must ascend."""
    named = list(zip(message._fields, fields, strict=True))
    writing = [(name, field, _varint(field.number << 3 | _WIRE.get(field.kind, LENGTH))) for name, field in named]
    _tables[message] = writing, {field.number: (name, field) for name, field in named}


def encode(message: Any) -> bytes:
    """The bytes of a message. Raises CodecError if an integer does not fit into 32 bits."""
    out: list[bytes] = []
    for (_, field, tag), value in zip(_tables[type(message)][0], message):
        kind = field.kind
        if kind in _BITS:
            if value:
                bits = _BITS[kind]
                if not -(1 << bits - 1) <= value < 1 << bits - 1:
                    raise CodecError(f"{value} does not fit into the {bits} bits that evochi.v1 has for it")
                out += tag, _varint(value & 0xFFFFFFFFFFFFFFFF)
        elif kind == "messages":
            for item in value:
                body = encode(item)
                out += tag, _varint(len(body)), body
        elif kind == "message":
            if value is not None:
                body = encode(value)
                out += tag, _varint(len(body)), body
        elif kind == "floats":
            if len(value):
                with np.errstate(over="ignore"):  # what is too large becomes infinite, as in Google's encoder
                    body = np.asarray(value, "<f4").tobytes()
                out += tag, _varint(len(body)), body
        elif kind == "bool":
            if value:
                out += tag, b"\x01"
        elif value or (value is not None and kind == "optional bytes"):
            body = value.encode() if kind == "string" else value
            out += tag, _varint(len(body)), body
    return b"".join(out)


def decode(message: type[M], data: bytes) -> M:
    """The message in `data`. Raises CodecError if it is malformed."""
    try:
        return _built(message, _read(message, memoryview(data), {}))
    except IndexError:
        raise CodecError(f"a {message.__name__} ends too early") from None


def _built(message: type[M], values: dict[str, Any]) -> M:
    parts: list[Any] = []
    for name, field, _ in _tables[message][0]:
        value = values.get(name)
        if value is None:
            value = _NO_FLOATS if field.kind == "floats" else _EMPTY.get(field.kind)
        elif field.kind == "message":
            assert field.of is not None
            value = _built(field.of, value)
        elif field.kind == "floats":
            value = np.frombuffer(bytes(value), "<f4")
        parts.append(value)
    return message(*parts)


def _read(message: type[Any], data: memoryview, values: dict[str, Any]) -> dict[str, Any]:
    """Read the fields in `data` into `values`, which a submessage that comes a second time adds to."""
    known = _tables[message][1]
    at, size = 0, len(data)
    while at < size:
        tag = data[at]
        at += 1
        if tag & 0x80:
            tag, at = _read_varint(data, at - 1, 5)
            if tag >> 32:
                raise CodecError("a field has a number that is too large")
        wire = tag & 7
        entry = known.get(tag >> 3)
        if entry is None or (wire != _WIRE.get(entry[1].kind, LENGTH) and not (wire == FOUR and entry[1].kind == "floats")):
            at = _skip(data, at, tag, 0)
            continue
        name, field = entry
        kind = field.kind
        if wire == VARINT:
            number, at = _read_varint(data, at, 10)
            if kind == "bool":
                values[name] = number != 0
            else:
                bits = _BITS[kind]
                number &= (1 << bits) - 1
                values[name] = number - (1 << bits) if number >> bits - 1 else number
            continue
        length, at = (4, at) if wire == FOUR else _read_varint(data, at, 5)
        end = at + length
        if end > size:
            raise CodecError(f"a {message.__name__} ends too early: {length} bytes were announced and {size - at} came")
        part = data[at:end]
        at = end
        if kind == "floats":
            if length % 4:
                raise CodecError(f"the {name} of a {message.__name__} have {length} bytes, which is no whole number of floats")
            _add_floats(values, name, part)
        elif kind == "messages":
            assert field.of is not None
            items = values.setdefault(name, [])
            if len(items) >= MAX_ITEMS:
                raise CodecError(f"a {message.__name__} has more than {MAX_ITEMS} {name}")
            items.append(_built(field.of, _read(field.of, part, {})))
        elif kind == "message":
            assert field.of is not None
            if field.oneof:
                for other, (_, same) in ((n, (k, f)) for k, (n, f) in known.items()):
                    if same.oneof and other != name:
                        values.pop(other, None)
            _read(field.of, part, values.setdefault(name, {}))
        elif kind == "string":
            try:
                values[name] = str(part, "utf-8")
            except UnicodeDecodeError:
                raise CodecError(f"the {name} of a {message.__name__} is not UTF-8") from None
        else:
            values[name] = bytes(part)
    return values


def _add_floats(values: dict[str, Any], name: str, part: memoryview) -> None:
    before = values.setdefault(name, part)
    if before is not part:  # they may come in several pieces, and each float alone
        if not isinstance(before, bytearray):
            before = values[name] = bytearray(before)
        before += part


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: memoryview, at: int, longest: int) -> tuple[int, int]:
    """The number that begins at `at`, and where the next field begins. IndexError: the data end within it."""
    number = data[at]
    if number < 0x80:
        return number, at + 1
    number &= 0x7F
    for shift in range(7, 7 * longest, 7):
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return number, at + 1
    raise CodecError(f"a number is longer than its {longest} bytes")


def _skip(data: memoryview, at: int, tag: int, depth: int) -> int:
    """Where the field after an unknown one begins."""
    number, wire = tag >> 3, tag & 7
    if not number:
        raise CodecError("a field has the number 0")
    if wire == VARINT:
        return _read_varint(data, at, 10)[1]
    if wire == LENGTH:
        length, at = _read_varint(data, at, 5)
        at += length
    elif wire == GROUP:
        if depth == MAX_DEPTH:
            raise CodecError(f"groups are nested more than {MAX_DEPTH} deep")
        while True:
            inner, at = _read_varint(data, at, 5)
            if inner & 7 == END_GROUP:
                if inner >> 3 != number:
                    raise CodecError("the end of a group has another number than its beginning")
                return at
            at = _skip(data, at, inner, depth + 1)
    elif wire in (EIGHT, FOUR):
        at += 8 if wire == EIGHT else 4
    else:
        raise CodecError("a field has a type that does not exist" if wire != END_GROUP else "a group ends that has not begun")
    if at > len(data):
        raise CodecError("a field ends too early")
    return at
