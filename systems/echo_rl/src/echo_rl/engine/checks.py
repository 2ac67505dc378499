"""What a request may ask of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from echo_rl.checks import check, optional, real, whole


def checked_tokens(tokens: Iterable[Any], vocab: int, what: str) -> tuple[int, ...]:
    """Return tokens as ints. Raise ValueError for what is no whole number, such as 1.9, "7" or True, and for what the model lacks."""
    found = tuple(tokens)
    # Nearly all tokens are plain ints. To ask whether each is an Integral would take longer than all else that a prompt's admission does.
    for token in () if all(type(token) is int for token in found) else found:
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise ValueError(f"{what} holds {token!r}, which is no token; tokens are whole numbers")
    numbers = tuple(int(token) for token in found)
    if numbers and not 0 <= min(numbers) <= max(numbers) < vocab:
        raise ValueError(f"{what} has tokens in {min(numbers)} .. {max(numbers)}; the model knows 0 .. {vocab - 1}")
    return numbers


def checked_stops(stop: Iterable[int | Sequence[int]], vocab: int) -> frozenset[tuple[int, ...]]:
    """Return stop sequences as tuples of tokens. Raise ValueError for texts, empty sequences and what is no token."""
    if isinstance(stop, (str, bytes)):
        raise ValueError(f"stop={stop!r} is a text; the engine stops at tokens, and a backbone or an endpoint at texts")
    stops = set()
    for given in stop:
        if isinstance(given, (str, bytes)):
            raise ValueError(f"stop has the text {given!r}; the engine stops at tokens, and a backbone or an endpoint at texts")
        sequence = checked_tokens((given,) if isinstance(given, int) else given, vocab, "stop")
        if not sequence:
            raise ValueError("a stop sequence is empty; give at least one token")
        stops.add(sequence)
    return frozenset(stops)


def check_options(max_new: Any, temperature: Any, top_p: Any, value: Any, seed: Any, top: Any) -> None:
    """Raise ValueError, which names the option, for a number that is not finite, not whole, or out of range."""
    check("max_new", max_new, whole(1))
    check("temperature", temperature, real(0))
    check("top_p", top_p, real(most=1, above=0))
    check("value", value, real())
    check("seed", seed, optional(whole(0)))
    check("top", top, whole(0))
