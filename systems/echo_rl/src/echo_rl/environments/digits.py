"""Sorting digits: a text task that a tiny language model learns in seconds, so that a whole training loop can be tried on two cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from echo_core import ConfigError
from echo_rl.environments.base import checked_seed

__all__ = ["DigitsConfig", "DigitsEnvironment"]


@dataclass(frozen=True)
class DigitsConfig:
    """The task.

    Attributes:
        length: how many digits are to be sorted, 1 to 32.
        base: the digits are 0 to ``base - 1``; 2 to 10.
        reward: ``"places"``: the share of the digits that stand in the right place. ``"exact"``: 1 if all of them do, else 0.
    """

    length: int = 3
    base: int = 10
    reward: Literal["places", "exact"] = "places"

    def __post_init__(self) -> None:
        for name, least, most in (("length", 1, 32), ("base", 2, 10)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ConfigError(f"digits: {name} has to be a whole number from {least} to {most}, not {value!r}")
        if self.reward not in ("places", "exact"):
            raise ConfigError(f'digits: reward has to be "places" or "exact", not {self.reward!r}')


class DigitsEnvironment:
    """The observation is a text such as ``"312>"``; the answer is one action, here ``"123"``. An episode has one step.

    Each seed has its own digits, and different seeds may have the same ones. The answer is never in an observation.
    """

    alphabet = "0123456789>"
    """The characters of observations and answers, for a model that is trained from nothing."""

    def __init__(self, config: DigitsConfig | None = None) -> None:
        self.config = config or DigitsConfig()
        self._answer = ""

    def reset(self, seed: int) -> str:
        """Return the digits of this seed and ``">"``."""
        digits = np.random.default_rng(checked_seed("digits", seed)).integers(0, self.config.base, self.config.length)
        self._answer = "".join(map(str, sorted(digits.tolist())))
        return "".join(map(str, digits.tolist())) + ">"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer. Spaces around the answer do not count; an answer of another length is never exact."""
        given = str(action).strip()
        exact = given == self._answer
        right = sum(a == b for a, b in zip(given, self._answer, strict=False)) / len(self._answer)
        places = right if len(given) == len(self._answer) else 0.0
        return "", float(exact) if self.config.reward == "exact" else places, True, False, {"success": exact}

    def solve(self) -> str:
        """The right answer of this episode, for the baseline ``oracle``."""
        return self._answer

    def sample(self, rng: np.random.Generator) -> str:
        """``length`` random digits below ``base``, for the baseline ``random``."""
        return "".join(map(str, rng.integers(0, self.config.base, self.config.length).tolist()))
