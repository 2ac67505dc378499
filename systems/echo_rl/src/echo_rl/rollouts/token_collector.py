"""Makes the groups of rollouts of a language model: one record for each ticket."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from echo_core import Ragged, SpecError
from echo_rl.engine import Engine
from echo_rl.environments import EnvironmentFailure
from echo_rl.rollouts.actor import Leave, Partial, Policy
from echo_rl.rollouts.partial_rollouts import episodes_of, read_prefix, write_prefix
from echo_rl.rollouts.schema import RolloutSchema
from echo_rl.rollouts.text_episodes import Episode, TextEpisodes
from echo_rl.rollouts.text_policy import TextRules, tensors
from echo_rl.rollouts.tickets import Ticket

__all__ = ["TokenCollector", "schema_of"]

_FAULT = 500  # bytes of the text of a fault
_LOOK = 0.05  # seconds between two questions for newer weights
_log = logging.getLogger("echo.rl")


def schema_of(rules: TextRules) -> RolloutSchema:
    """The records of a group.

    Beside the tokens they have: ``success`` of each rollout (1, 0, or 2 if the environment does not say), ``steps`` (its actions), the ``fault`` of the
    first environment that failed, the prompt tokens that the engine was ``asked`` for and those of them that it found cached (``hit``), and the seconds.
    ``anew`` counts how often the group was begun anew, because an actor could not go on with the prefix of another one.
    """
    most = rules.shape().context
    extra = {
        "success": np.zeros(rules.group, np.uint8),
        "steps": np.zeros(rules.group, np.int32),
        "fault": Ragged(np.uint8, axis="fault", most=_FAULT),
        "asked": np.int64(0),
        "hit": np.int64(0),
        "seconds": np.float32(0),
        "anew": np.int32(0),
    }
    return RolloutSchema(group=rules.group, most=most, most_prompt=most, most_turns=rules.max_steps, extra=extra)


class TokenCollector:
    """Plays the ``group`` episodes of a ticket on an engine of this process.

    Args:
        rules: of the rollouts.
        leave: tells it to stop between two tokens, if ``rules.resume`` is set.
    """

    def __init__(self, rules: TextRules, leave: Leave | None = None) -> None:
        self.rules, self.schema, self._episodes, self._leave = rules, schema_of(rules), TextEpisodes(rules), leave or Leave()
        self._engine: Engine | None = None

    @property
    def at_once(self) -> int:
        """See ``Collector``."""
        return self.rules.at_once

    @property
    def leaves(self) -> dict[str, Any]:
        """The example of a record."""
        return self.schema.example()

    def collect(self, tickets: Sequence[Ticket], policy: Policy, newer: Callable[[int], Policy | None]) -> list[dict[str, Any] | Partial]:
        """See ``Collector``."""
        began = time.monotonic()
        engine = self._with(policy)
        before = engine.stats()
        looked = began

        def stop() -> bool:
            nonlocal looked
            if rules.resume and self._leave.asked:
                return True
            if (rules.swap or rules.resume) and time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                if (found := newer(engine.version)) is not None:
                    # The learner waits for a group as old as eta allows, so that this actor finishes it. Any other one can still be finished in time.
                    if rules.resume and all(found.version < ticket.version + rules.eta for ticket in tickets):
                        return True
                    engine.update_weights(tensors(found.params), found.version)
            return False

        rules, size = self.rules, self.rules.group
        begun: list[Episode | None] = []
        before_that: list[Mapping[str, Any]] = []
        for ticket in tickets:
            own, figures = self._resumed(ticket, engine.version)
            begun += own
            before_that.append(figures)
        episodes = self._episodes.play(engine, [(ticket.task, i) for ticket in tickets for i in range(size)], rules.temperature, stop, begun)
        after = engine.stats()
        # The engine counts for all tickets together; each record has its part, and the first one what is left.
        parts = {name: int(after[f"{name}_tokens"] - before[f"{name}_tokens"]) for name in ("asked", "hit")}
        shares = [{name: np.int64(n // len(tickets) + (n % len(tickets) if i == 0 else 0)) for name, n in parts.items()} for i in range(len(tickets))]
        seconds = np.float32((time.monotonic() - began) / len(tickets))
        made: list[dict[str, Any] | Partial] = []
        for i, ticket in enumerate(tickets):
            # What the actors before have counted counts too.
            figures = {name: value + before_that[i].get(name, 0) for name, value in {**shares[i], "seconds": seconds, "anew": np.int32(0)}.items()}
            played = episodes[i * size : (i + 1) * size]
            record = self._record(ticket, played, **figures)
            if any(not episode.finish for episode in played):
                made.append(Partial(write_prefix(record)))
            elif rules.resume and record["mask"].any():
                made.append({**record, "version": np.int64(record["versions"][record["mask"]].min())})
            else:
                made.append(record)
        return made

    def _resumed(self, ticket: Ticket, version: int) -> tuple[Sequence[Episode | None], Mapping[str, Any]]:
        """The episodes of a ticket as its prefix has them, with environments that have come to where they were interrupted; and the figures of the prefix.

        If there is no prefix, or it cannot be used, there is None for each episode. A group is begun anew as a whole, because its finished rollouts may be
        of another task than those that this actor can make.
        """
        nothing = [None] * self.rules.group
        if not ticket.prefix or not self.rules.resume:
            return nothing, {}
        record: dict[str, Any] = {}
        try:
            record = read_prefix(ticket.prefix)
            episodes = episodes_of(record, self.schema)
            if episodes[0].task != ticket.task:
                raise SpecError("its prefix is that of another task")
            if (newest := max(record["versions"], default=0)) > version:
                raise SpecError(f"its tokens are of version {newest}, and the policy has version {version}: the learner has lost what it has learned since")
            return self._episodes.replay(episodes), record
        except (SpecError, EnvironmentFailure) as error:
            _log.warning("ticket %d is begun anew: %s", ticket.number, error)
            return nothing, {"anew": 1 + int(record.get("anew", 0))}

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
        # A version before the engine's is that of a learner that goes on from a checkpoint; it has lost the policies after it.
        if self._engine is None or self.rules.alone or policy.version < self._engine.version:
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
