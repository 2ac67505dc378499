"""A text environment whose rewards a language model gives, for RLAIF (Bai et al., "Constitutional AI", 2022; Lee et al., "RLAIF", 2023)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from echo_rl.backbones import Backbone, BackboneError
from echo_rl.environments import EnvironmentFailure, make_environment, register_environment

__all__ = ["JUDGED", "JudgedEnvironment", "forget", "judged_by", "judgement"]

JUDGED = "judged"
_ASKED = "How good is the last action for this task? Answer with one number from 1 (useless) to 10 (perfect)."
_MOST = 12  # turns that the judge reads beside the first one
_judges: dict[int, Backbone] = {}
_numbers = itertools.count()


def judged_by(judge: Backbone, task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which ``make_environment(JUDGED, ...)`` makes this task in this process. ``forget`` frees the judge."""
    register_environment(JUDGED, JudgedEnvironment)
    number = next(_numbers)
    _judges[number] = judge
    return {"task": task, "options": dict(options), "judge": number}


def forget(options: Mapping[str, Any]) -> None:
    """Undo ``judged_by``."""
    del _judges[options["judge"]]


class JudgedEnvironment:
    """The task, with each reward replaced by the judge's number, from 1 to 10, divided by 10; an answer without such a number is a reward of 0.

    Args:
        task, options: what ``make_environment`` takes.
        judge: the number of a judge in this process.
    """

    def __init__(self, task: str, options: dict[str, Any], judge: int) -> None:
        self._environment, self._judge = make_environment(task, **options), _judges[judge]
        self._turns: list[str] = []
        if (alphabet := getattr(self._environment.environment, "alphabet", None)) is not None:
            self.alphabet = alphabet

    @property
    def admissible(self) -> list[str] | None:
        """The actions of the task that are possible now."""
        return self._environment.admissible

    def reset(self, seed: int) -> Any:
        """Begin the task."""
        observation = self._environment.reset(seed)
        self._turns = [f"{observation}"]
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act, and ask the judge. ``info["success"]`` is the environment's own."""
        found = self._environment.step(action)
        told = [self._turns[0], *self._turns[1:][-_MOST:], f"Action: {action}"]
        self._turns += [f"Action: {action}", f"{found.observation}"]
        prompt = [{"role": "user", "content": "\n".join(told) + f"\n\n{_ASKED}"}]
        try:
            answer = self._judge.generate([prompt], max_tokens=8, temperature=0.0)[0].text
        except (BackboneError, ValueError, TimeoutError) as error:
            raise EnvironmentFailure(f"the judge {self._judge.name} has not answered: {error}") from error
        return found.observation, judgement(answer) / 10, found.terminated, found.truncated, found.info

    def close(self) -> None:
        """Close the task."""
        self._environment.close()


def judgement(answer: str) -> float:
    """The number from 1 to 10 that an answer gives; 0 if it has none."""
    read = re.search(r"\d+(\.\d+)?", answer)
    value = float(read[0]) if read else 0.0
    return value if 1 <= value <= 10 else 0.0
