"""Makes the groups of rollouts of a language model: one record for each ticket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from echo_core import Ragged
from echo_rl.engine import Engine
from echo_rl.rollouts.actor import Policy
from echo_rl.rollouts.schema import RolloutSchema
from echo_rl.rollouts.text_episodes import Episode, TextEpisodes
from echo_rl.rollouts.text_policy import TextRules, tensors
from echo_rl.rollouts.tickets import Ticket

__all__ = ["TokenCollector", "schema_of"]

_FAULT = 500  # bytes of the text of a fault
_LOOK = 0.05  # seconds between two questions for newer weights


def schema_of(rules: TextRules) -> RolloutSchema:
    """The records of a group.

    Beside the tokens they have: ``success`` of each rollout (1, 0, or 2 if the environment does not say), ``steps`` (its actions), the ``fault`` of the
    first environment that failed, the prompt tokens that the engine was ``asked`` for and those of them that it found cached (``hit``), and the seconds.
    """
    most = rules.shape().context
    extra = {
        "success": np.zeros(rules.group, np.uint8),
        "steps": np.zeros(rules.group, np.int32),
        "fault": Ragged(np.uint8, axis="fault", most=_FAULT),
        "asked": np.int64(0),
        "hit": np.int64(0),
        "seconds": np.float32(0),
    }
    return RolloutSchema(group=rules.group, most=most, most_prompt=most, most_turns=rules.max_steps, extra=extra)


class TokenCollector:
    """Plays the ``group`` episodes of a ticket on an engine of this process.

    Args:
        rules: of the rollouts.
    """

    def __init__(self, rules: TextRules) -> None:
        self.rules, self.schema, self._episodes = rules, schema_of(rules), TextEpisodes(rules)
        self._engine: Engine | None = None

    @property
    def at_once(self) -> int:
        """See ``Collector``."""
        return self.rules.at_once

    @property
    def leaves(self) -> dict[str, Any]:
        """The example of a record."""
        return self.schema.example()

    def collect(self, tickets: Sequence[Ticket], policy: Policy, newer: Callable[[int], Policy | None]) -> list[dict[str, Any]]:
        """See ``Collector``."""
        began = time.monotonic()
        engine = self._with(policy)
        before = engine.stats()
        looked = began

        def swap() -> None:
            nonlocal looked
            if self.rules.swap and time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                if (found := newer(engine.version)) is not None:
                    engine.update_weights(tensors(found.params), found.version)

        size = self.rules.group
        episodes = self._episodes.play(engine, [(ticket.task, i) for ticket in tickets for i in range(size)], self.rules.temperature, swap)
        after = engine.stats()
        # The engine counts for all tickets together; each record has its part, and the first one what is left.
        parts = {name: int(after[f"{name}_tokens"] - before[f"{name}_tokens"]) for name in ("asked", "hit")}
        shares = [{name: np.int64(n // len(tickets) + (n % len(tickets) if i == 0 else 0)) for name, n in parts.items()} for i in range(len(tickets))]
        seconds = np.float32((time.monotonic() - began) / len(tickets))
        return [self._record(t, episodes[i * size : (i + 1) * size], seconds=seconds, **shares[i]) for i, t in enumerate(tickets)]

    def _record(self, ticket: Ticket, episodes: list[Episode], **figures: Any) -> dict[str, Any]:
        prompt = _shared_prompt(episodes, self.rules.environment)
        fault = next((episode.fault for episode in episodes if episode.fault), "")
        return self.schema.pack(
            [episode.rollout() for episode in episodes],
            task=ticket.task,
            prompt=prompt,
            success=np.array([2 if episode.success is None else episode.success for episode in episodes], np.uint8),
            steps=np.array([len(episode.rewards) for episode in episodes], np.int32),
            fault=np.frombuffer(fault.encode()[:_FAULT], np.uint8),
            **figures,
        )

    def close(self) -> None:
        """Close the environments."""
        self._episodes.close()

    def _with(self, policy: Policy) -> Engine:
        if self._engine is None or self.rules.alone:
            self._engine = self.rules.engine(policy.params, policy.version)
        elif policy.version > self._engine.version:
            self._engine.update_weights(tensors(policy.params), policy.version)
        return self._engine


def _shared_prompt(episodes: list[Episode], name: str) -> list[int]:
    """The prompt of the group. An episode that began otherwise has another task, and cannot be compared with the others."""
    prompt = next((episode.prompt for episode in episodes if episode.prompt), [])
    for episode in episodes:
        if episode.prompt != prompt and not episode.fault:
            episode.finish, episode.fault = "error", f"environment {name}: reset({episode.task}) has begun two different episodes with the same seed"
    return prompt
