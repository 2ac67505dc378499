"""The records of an epoch log as bytes."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["later", "record", "records"]

_MARK = b"\xe5ES\n"  # begins each record, so that whole records after a damaged one are found
_HEAD = struct.Struct("<4sIIQ")  # mark, checksum of all that follows it, bytes of JSON, bytes of data


def record(kind: str, head: Mapping[str, Any], data: bytes) -> bytes:
    """One record: JSON that has its kind, and data."""
    text = json.dumps({"kind": kind, **head}).encode()
    sizes = struct.pack("<IQ", len(text), len(data))
    return _MARK + struct.pack("<I", zlib.crc32(data, zlib.crc32(text, zlib.crc32(sizes)))) + sizes + text + data


def records(content: bytes, at: int) -> Iterator[tuple[dict[str, Any], bytes, int]]:
    """(JSON, data, where it ends) of the whole records that follow each other from `at` on."""
    while (found := _whole(content, at)) is not None:
        yield found
        at = found[2]


def later(content: bytes, at: int) -> bool:
    """Whether there is a whole record somewhere after the damaged one at this place."""
    while (at := content.find(_MARK, at + 1)) >= 0:
        if _whole(content, at) is not None:
            return True
    return False


def _whole(content: bytes, at: int) -> tuple[dict[str, Any], bytes, int] | None:
    """The record at this place, if its checksum fits."""
    if len(content) - at < _HEAD.size:
        return None
    mark, check, text_bytes, data_bytes = _HEAD.unpack_from(content, at)
    begin = at + _HEAD.size
    middle, end = begin + text_bytes, begin + text_bytes + data_bytes
    if mark != _MARK or end > len(content) or zlib.crc32(memoryview(content)[at + 8 : end]) != check:
        return None
    return json.loads(content[begin:middle]), content[middle:end], end
