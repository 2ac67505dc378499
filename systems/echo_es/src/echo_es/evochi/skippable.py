"""Where a state in our own form is within a state on the wire of Evochi: in a skippable frame of zstd at its end.

frame of zstd, which Evochi's clients read | magic, length | state in our form | its length, b"echo"
"""

from __future__ import annotations

import struct

__all__ = ["appended", "ours"]

_SKIPPABLE = struct.Struct("<II")  # magic, bytes that follow
_END = struct.Struct("<I4s")  # bytes of the state in our form, and a mark
_MAGIC, _MARK = 0x184D2A5E, b"echo"


def appended(whole: bytes, own: bytes) -> bytes:
    """`whole`, frames of zstd, and the state in our form."""
    return b"".join((whole, _SKIPPABLE.pack(_MAGIC, len(own) + _END.size), own, _END.pack(len(own), _MARK)))


def ours(data: bytes) -> memoryview | None:
    """The state in our form, or None if a client of Evochi has sent `data`."""
    view = memoryview(data)
    if len(view) < _SKIPPABLE.size + _END.size:
        return None
    size, mark = _END.unpack(view[-_END.size :])
    start = len(view) - _END.size - size
    if mark != _MARK or start < _SKIPPABLE.size or _SKIPPABLE.unpack(view[start - _SKIPPABLE.size : start]) != (_MAGIC, size + _END.size):
        return None
    return view[start : start + size]
