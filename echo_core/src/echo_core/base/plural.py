"""Numbers of things in messages to people: `1 sample`, `2 samples`."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 worker`, `2 workers`, `3,000 workers`. `plural` is for nouns that take more than an s: `counted(2, "batch", "batches")`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
