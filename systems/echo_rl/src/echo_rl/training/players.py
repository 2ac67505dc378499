"""What a trainer's policy does in an episode: the likeliest action, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from echo_rl.backbones import Usage, backbone
from echo_rl.core import PlanningConfig
from echo_rl.environments.proposals import ProposalsConfig, Proposer
from echo_rl.rollouts.acting import Acting, Spaces
from echo_rl.rollouts.text_policy import TextRules, text_of

__all__ = ["Player", "ProposalPlayer", "SegmentPlayer", "TokenPlayer"]


class Player(Protocol):
    """Plays with the policy that a trainer had when ``EchoRLTrainer.player`` was called. It may have the method ``close``."""

    @property
    def usage(self) -> Usage:
        """The tokens of a language model since ``begin``. Without one, and for what Echo's own engine makes, they cost nothing."""

    @property
    def cost(self) -> float | None:
        """Of these tokens, None if a price is missing."""

    def begin(self) -> None:
        """An episode begins."""

    def act(self, observation: Any, admissible: list[str] | None = None) -> Any:
        """The policy's likeliest action. ``admissible`` are the actions that are possible now, if a text environment has them."""


class SegmentPlayer:
    """A policy of numbers, with the plan of the episode's last states if it has one."""

    cost = 0.0

    def __init__(self, weights: Mapping[str, Any], spaces: Spaces, planning: PlanningConfig | None) -> None:
        self._weights, self._first, self._acting = weights, spaces.first, Acting(spaces, 1, planning)
        self.usage = Usage()

    def begin(self) -> None:
        """An episode begins."""
        self._acting.begin([0])

    def act(self, observation: Any, admissible: list[str] | None = None) -> int:
        """See ``Player``."""
        actions, _ = self._acting.act(self._weights, np.asarray(observation, np.float32)[None], None)
        return int(actions[0]) + self._first


class TokenPlayer:
    """A language model, which reads the conversation of its training: the observation with the possible actions, its answers, and what follows."""

    cost = 0.0

    def __init__(self, weights: Mapping[str, Any], rules: TextRules) -> None:
        self._rules, self._tokenizer, self._ends, self._name = rules, rules.tokenizer(), rules.ends(), rules.environment
        self._engine = rules.engine(weights, 0)
        self._known: list[int] = []
        self.usage = Usage()

    def begin(self) -> None:
        """An episode begins."""
        self._known, self.usage = [], Usage()

    def act(self, observation: Any, admissible: list[str] | None = None) -> str:
        """See ``Player``."""
        self._known += self._tokenizer.encode(text_of(observation, admissible, self._name))
        room = min(self._rules.max_new, self._rules.shape().context - len(self._known))
        if room < 1:
            return ""  # the context is full, as at the end of an episode of the training; an empty action does nothing
        request = self._engine.submit(self._known, room, temperature=0.0, stop=self._ends)
        self._engine.run()
        self._known += request.output
        self.usage += Usage(len(request.prompt), len(request.output), request.cached)
        return self._tokenizer.decode([token for token in request.output if token not in self._ends])


class ProposalPlayer:
    """A small policy that chooses among the actions that a language model proposes. It plays in the text environment itself."""

    def __init__(self, policy: SegmentPlayer, config: ProposalsConfig) -> None:
        self._policy, self._proposer = policy, Proposer(config, backbone(config.backbone))

    @property
    def usage(self) -> Usage:
        """The tokens of the language model since ``begin``."""
        return self._proposer.usage

    @property
    def cost(self) -> float | None:
        """Of these tokens, None if a price is missing."""
        return self._proposer.cost

    def begin(self) -> None:
        """An episode begins."""
        self._policy.begin()
        self._proposer.begin()

    def act(self, observation: Any, admissible: list[str] | None = None) -> str:
        """See ``Player``."""
        offered = self._proposer.offer(observation, admissible)
        action = offered.actions[self._policy.act(offered.state)]
        self._proposer.chosen(action)
        return action

    def close(self) -> None:
        """Close the language model."""
        self._proposer.model.close()
