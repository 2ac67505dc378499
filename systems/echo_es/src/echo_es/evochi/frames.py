"""States on the wire of Evochi: what its own clients read, followed by what ours read.

A client of Evochi sends its state pickled and compressed by zstd. Ours sends the same, and appends a skippable frame of zstd with the state
in our own form. The old clients' `zstd.decompress` stops before that frame. Ours read it alone, so that they never open what another
peer pickled. Only workers import this module; a server passes states on as bytes.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import zstandard

from echo_core import EchoError

from .skippable import appended

__all__ = ["opened", "sealed"]


def sealed(state: Any, own: bytes | None) -> bytes:
    """`state` as both kinds of clients read it. `own` is the state in our form; without it, only clients that unpickle can read it.

    Raises EchoError if it cannot be pickled.
    """
    try:
        pickled = pickle.dumps(state)
    except Exception as error:
        raise EchoError(
            f"the state, a {type(state).__name__}, cannot be pickled, which Evochi's clients need: {error}; define its class in a module"
        ) from error
    whole: bytes = zstandard.compress(pickled)
    return whole if own is None else appended(whole, own)


def opened(data: bytes) -> Any:
    """Unpickle the state. It runs whatever code its sender chose, so it is only for peers that the user trusts.

    Raises EchoError if these are not the bytes of a client.
    """
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as reader:
            return pickle.load(reader)
    except (zstandard.ZstdError, pickle.UnpicklingError, EOFError) as error:
        raise EchoError(f"the shared state is not zstd(pickle), as Evochi's clients send it: {error}") from error
