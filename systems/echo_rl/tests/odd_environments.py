"""Environments for the tests: two turns with sums, four turns of talk, and one that fails in each way at some tasks. Actors import this module."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from echo_rl.environments import environments, register_environment


class SumsEnvironment:
    """Two actions: the first is paid by 0.25 in any case, the second by the share of "a" in it. The observations are of varying length."""

    alphabet = "abc:"

    def reset(self, seed: int) -> str:
        self.seed, self.step_number = seed, 0
        return "abc"[seed % 3] * (1 + seed % 2) + ":"

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        if self.step_number == 1:
            return "cc:", 0.25, False, False, {}
        return "", action.count("a") / 2, True, False, {"success": action == "aa"}


class OddEnvironment(SumsEnvironment):
    """It fails at tasks whose number modulo 8 is below 6, each time in another way; at 5, every rollout of the task fails."""

    made = 0
    #: Ends the calls that hang, so that a test leaves no thread behind.
    release = threading.Event()

    def __init__(self, always: bool = False) -> None:
        OddEnvironment.made += 1
        self.number, self.always, self.resets = OddEnvironment.made, always, 0

    def reset(self, seed: int) -> str:
        self.resets += 1
        if self.always or seed % 8 == 5:
            raise RuntimeError(f"task {seed} is broken")
        if seed % 8 == 4 and self.number % 4 == 0:
            return None  # type: ignore[return-value]
        return super().reset(seed)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        kind = self.seed % 8
        if self.number % 4 == 0 and kind == 0:
            raise ValueError("no such action")
        if self.number % 4 == 0 and kind == 1:
            reward = float("nan")
        if self.number % 4 == 0 and kind == 2:
            self.release.wait(60)
        if self.number % 4 == 0 and kind == 3:
            terminated = 0.5  # type: ignore[assignment]
        return observation, reward, terminated, truncated, info


class TalkEnvironment:
    """Up to four actions. What it says depends on all of them; it is over early after an action with two "b"."""

    alphabet = "abc:"

    def __init__(self, word: str = "ab:", gate: str | None = None) -> None:
        self.word, self.gate = word, gate

    def reset(self, seed: int) -> str:
        self.said, self.turns = seed, 0
        return "abc"[seed % 3] + ":"

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.gate is not None and not Path(self.gate).exists():
            Path(self.gate + ".waits").touch()
            while not Path(self.gate).exists():
                time.sleep(0.005)
        self.turns, self.said = self.turns + 1, self.said * 31 + sum(map(ord, action))
        over = self.turns == 4 or action.count("b") > 1
        return self.word[self.said % 3] * (self.said % 4), (self.said % 7) / 7, over, False, {"success": self.said % 2 == 0} if over else {}


for name, kind in (("test-sums", SumsEnvironment), ("test-odd", OddEnvironment), ("test-talk", TalkEnvironment)):
    if name not in environments():
        register_environment(name, kind)
