"""The original wire format, for deployments that migrate one side at a time: the option `protocol="echo1"` at either end.

The learner speaks first: the magic `ECHO`, version byte 1, u32 number of arrays, and for each
u32 item size, u32 number of dimensions, u32 dimensions, all little-endian. Then the worker sends
bare samples, leaf after leaf, and each is answered by one byte 0x01. There is no authentication,
no resuming, and nothing says where a sample begins. A client of a later protocol that comes to such a learner is known by the
header of its first message; a shorter first message that may be the beginning of one is a sample if nothing follows for a second.

Here is how a connection begins, at both ends. The native engines speak the rest: `Peer::echo1` at the learner, `EngineConfig::original` at
a worker.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import ConfigError, HandshakeRefused, ProtocolError, SpecError
from echo_core.spec.ragged import ChunkSpec
from echo_core.spec.structure import leaf_name

from .dial import Link, connect, receive_exactly

if TYPE_CHECKING:
    from echo_core.base.address import Address
    from echo_core.spec.spec import Spec

__all__ = ["Echo1Handshake", "check_sendable", "dial_echo1", "greeting"]

MAX_LEAVES = 4096  # of an original server; more is not one
MAX_NDIM = 32


def check_sendable(spec: Spec) -> None:
    """Raise SpecError if the protocol cannot carry such samples without an error or a change of values. Raise ConfigError if they vary in length."""
    if isinstance(spec, ChunkSpec):
        raise ConfigError("workers of protocol 'echo1' send samples of one size, and the example has Ragged leaves; leave out protocol=")
    if spec.sample_bytes == 0:
        raise SpecError(
            "the original protocol cannot carry samples without any bytes: nothing would say that one"
            ' came; leave out protocol="echo1" or add a leaf that has some'
        )
    for leaf in spec.leaves:
        if leaf.swapped:
            raise SpecError(
                f"{leaf_name(leaf.path)} of the example has another byte order than this machine. The original protocol sends"
                " the bytes of each end's arrays as they are, so values would be wrong; give both ends an example in this"
                ' machine\'s byte order, such as array.astype(array.dtype.newbyteorder("=")), or leave out protocol="echo1"'
            )


# ------------------------------------------------------------------------------------ the learner's end

def greeting(spec: Spec) -> bytes:
    """The learner's first bytes. Raises SpecError if the original format cannot express `spec`."""
    check_sendable(spec)
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


class Echo1Handshake:
    """In the place of a `ServerHandshake`: the worker is sent a greeting, and answers nothing."""

    done = agreed = True
    refusal = leftover = b""

    def __init__(self, address: str) -> None:
        self.peer: dict[str, Any] = {
            "client": secrets.token_hex(16),
            "session": secrets.token_hex(16),
            "name": f"echo1@{address}",
            "role": "worker",
            "base": 0,
            "table": "",
            "pid": 0,
            "host": address.rpartition(":")[0],
            "permissions": frozenset(("write",)),
        }

    def receive(self, data: bytes) -> bytes:
        """Never called: it is done from the beginning."""
        raise ProtocolError("a worker of the original protocol answers nothing")

    def accept(self) -> bytes:
        """Never called, like `receive`."""
        return b""

    def refuse(self, code: str, text: str) -> bytes:
        """The protocol has no refusals: it is only hung up on."""
        return b""


# ------------------------------------------------------------------------------------- the worker's end


def dial_echo1(
    address: Address,
    spec: Spec,
    send_buffer: int,
    seconds: float,
    dialling: Callable[[socket.socket], None],
) -> Link:
    """Connect to a server of the original protocol, which describes its samples and listens.

    The description has sizes and shapes but neither dtypes nor keys. Raises SpecError naming the
    leaf that differs, ProtocolError if it is no such server; else as `dial.dial_echo2`.
    """
    end = time.monotonic() + seconds
    sock = connect(address, send_buffer, seconds)
    try:
        dialling(sock)

        def read(count: int) -> tuple[int, ...]:
            return struct.unpack(f"<{count}I", receive_exactly(sock, 4 * count, end))

        head = receive_exactly(sock, 5, end)
        if head[:4] != b"ECHO":
            raise ProtocolError(f"{address} is no Echo server: it began with {head!r}")
        if head[4] != 1:
            raise HandshakeRefused(
                f"{address} speaks Echo protocol {head[4]}, not the original one; connect without "
                "protocol='echo1'",
                "version",
            )
        (count,) = read(1)
        if count > MAX_LEAVES:
            raise ProtocolError(f"{address} describes samples of {count} arrays")
        theirs = []
        for _ in range(count):
            itemsize, ndim = read(2)
            if ndim > MAX_NDIM:
                raise ProtocolError(f"{address} describes an array of {ndim} dimensions")
            theirs.append((itemsize, read(ndim)))
        _compare(spec, theirs, address)
        return Link(sock)
    except BaseException:
        sock.close()
        raise


def _compare(spec: Spec, theirs: list[tuple[int, tuple[int, ...]]], address: Address) -> None:
    if len(theirs) != len(spec.leaves):
        raise SpecError(
            f"{address} takes samples of {len(theirs)} arrays, this worker's example has "
            f"{len(spec.leaves)}"
        )
    for leaf, (itemsize, shape) in zip(spec.leaves, theirs):
        if shape != tuple(leaf.shape) or itemsize != leaf.dtype.itemsize:
            raise SpecError(
                f"leaf {leaf.path!r}: {address} takes shape {shape} of {itemsize}-byte items, this "
                f"worker's example has {tuple(leaf.shape)} of {leaf.dtype.itemsize}-byte items "
                f"({leaf.dtype})"
            )
