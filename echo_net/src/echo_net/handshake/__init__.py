"""The handshake, without any input or output: bytes go in, bytes to send come out.

A message is a 12-byte header (magic `ECHO`, protocol version u8, kind u8, reserved u16, length
u32, little-endian) and `length` bytes of JSON. The ends take turns:

    HELLO ->  <- CHALLENGE  PROOF ->  <- WELCOME  SPEC ->  <- READY

and the learner may answer anything with REFUSED (a code and a text) and hang up. Both proofs are
HMACs over the digest of every byte exchanged so far, under different labels: the token never
travels, and neither a recorded nor a reflected proof is good for anything, because both ends put
fresh nonces into what is proven. Nothing is buffered beyond the limit of the message that is
due: 4 KiB until its sender has had to prove itself, 1 MiB after. A deadline is the caller's.

    handshake = ServerHandshake(spec, tokens, incarnation)
    while not handshake.done:
        try:
            reply = handshake.receive(connection.recv(65536))
        except EchoError:
            connection.send(handshake.refusal)  # b"" when there is nothing to say
            raise
        connection.send(reply)
    first_bytes_of_the_frames = handshake.leftover

| file        | what it has                                                                |
|-------------|----------------------------------------------------------------------------|
| messages.py | the messages, their limits, and what is proven over them                   |
| base.py     | what both ends share: cutting the stream into messages, and the transcript |
| learner.py  | the learner's end: whom it lets in, and what it tells those it refuses     |
| worker.py   | the worker's end: what it says of itself, and which learners it distrusts  |
"""

from __future__ import annotations

from .learner import CONNECTION_ROLES, ServerHandshake
from .messages import printable
from .worker import ClientHandshake

__all__ = ["CONNECTION_ROLES", "ClientHandshake", "ServerHandshake", "printable"]
