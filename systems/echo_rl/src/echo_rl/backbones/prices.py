"""What tokens cost, by a file of the user's. No price is built in: they change, and a wrong one would be a wrong result."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "ECHO_RL_PRICES"
"""Names the file if no other is given."""


class Prices:
    """Prices per million tokens.

    Args:
        table: For each model's id, ``prompt`` and ``made``, and ``cached`` if tokens from the server's cache have a price of their own.

    Raises:
        ValueError: If a key is unknown, or if a price is missing, negative or not a number.
    """

    def __init__(self, table: Mapping[str, Mapping[str, float]]) -> None:
        for model, row in table.items():
            if not isinstance(row, Mapping) or not {"prompt", "made"} <= set(row) <= {"prompt", "made", "cached"}:
                raise ValueError(f"the prices of {model!r} must be prompt and made, and may be cached")
            for name, value in row.items():
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                    raise ValueError(f"the price {name}={value!r} of {model!r} must be a number that is not negative")
        self._table = {model: dict(row) for model, row in table.items()}

    @classmethod
    def load(cls, path: str | Path | None = None) -> Prices:
        """Read a TOML file with a section such as ``["gpt-4o"]`` for each model. Without a path ECHO_RL_PRICES names it, or there are no prices."""
        path = path or os.environ.get(VARIABLE)
        return cls(tomllib.loads(Path(path).read_text()) if path else {})

    def cost(self, model: str, prompt: int, made: int, cached: int = 0) -> float | None:
        """Return the cost of tokens, or None if the model has no price. ``cached`` tokens are part of ``prompt``."""
        row = self._table.get(model)
        if row is None:
            return None
        return ((prompt - cached) * row["prompt"] + cached * row.get("cached", row["prompt"]) + made * row["made"]) / 1e6
