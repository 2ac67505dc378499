"""The original wire format, for deployments that migrate one side at a time.

The learner speaks first: the magic `ECHO`, version byte 1, u32 number of arrays, and for each
u32 item size, u32 number of dimensions, u32 dimensions, all little-endian. Then the worker sends
bare samples, leaf after leaf, and the learner answers each with one byte 0x01. There is no authentication
and no resuming, and nothing in the stream says where a sample begins.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from echo_core.base.errors import SpecError

if TYPE_CHECKING:
    from echo_core.spec.spec import Spec

__all__ = ["greeting"]


def greeting(spec: Spec) -> bytes:
    """The learner's first bytes. Raises SpecError if the original format cannot express `spec`."""
    if spec.sample_bytes == 0:
        raise SpecError(
            "the original protocol cannot carry samples of no bytes: nothing would say that one"
            ' came; leave out protocol="echo1" or add a leaf'
        )
    parts = [struct.pack("<4sBI", b"ECHO", 1, len(spec.leaves))]
    for leaf in spec.leaves:
        numbers = (leaf.dtype.itemsize, len(leaf.shape), *leaf.shape)
        if max(numbers) >= 1 << 32:
            raise SpecError(
                f"leaf {leaf.path} of shape {leaf.shape} has a dimension beyond 2**32 - 1, which"
                ' the original protocol cannot say; leave out protocol="echo1"'
            )
        parts.append(struct.pack(f"<{len(numbers)}I", *numbers))
    return b"".join(parts)
