"""Episodes of text environments, played side by side on one engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from echo_core import ConfigError, EchoError
from echo_rl.engine import Engine, Request
from echo_rl.environments import CheckedEnvironment, EnvironmentFailure, make_environment
from echo_rl.rollouts.schema import Rollout
from echo_rl.rollouts.text_policy import TextRules, text_of
from echo_rl.rollouts.timed_calls import TimedCalls, TimeoutFailure

__all__ = ["Episode", "TextEpisodes"]


@dataclass
class Episode:
    """One episode, also while it is played.

    Attributes:
        task: the seed of the environment. number: which attempt at the task it is.
        prompt: the tokens of the first observation.
        tokens, logprobs, versions, mask: after the prompt, one entry for each token of the policy and of the environment; ``mask`` tells which is whose.
        turns: where the tokens of each action begin.
        rewards: of each action.
        finish: one of ``FINISH_REASONS``, or "" while it is played.
        success: what the environment says of it at the end; None if it says nothing.
        fault: why the environment has failed, or "".
        late: whether the environment did not answer in time.
    """

    task: int
    number: int
    environment: CheckedEnvironment
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    finish: str = ""
    success: bool | None = None
    fault: str = ""
    late: bool = False

    @property
    def reward(self) -> float:
        """Of the whole episode; 0 if the environment has failed."""
        return 0.0 if self.fault else float(sum(self.rewards))

    def rollout(self) -> Rollout:
        """The episode as the learner gets it. No token of an episode whose environment has failed counts."""
        mask = np.array(self.mask, bool) & (not self.fault)
        turns = None if not self.tokens else np.array(self.turns, np.int32)
        tokens, versions = np.array(self.tokens, np.int32), np.array(self.versions, np.int32)
        return Rollout(tokens, np.array(self.logprobs, np.float32), versions, mask, turns, self.reward, self.number, self.finish)


class TextEpisodes:
    """Plays episodes. Environments are kept for the next ones; one that has failed is replaced.

    Args:
        rules: of the environment and the model.
    """

    def __init__(self, rules: TextRules) -> None:
        self.rules, self._shape, self._tokenizer, self._ends = rules, rules.shape(), rules.tokenizer(), rules.ends()
        if self._tokenizer.vocab > self._shape.vocab:
            raise ConfigError(f"the tokenizer has {self._tokenizer.vocab} tokens, and the model knows {self._shape.vocab}")
        self._calls, self._idle = TimedCalls(rules.timeout), list[CheckedEnvironment]()

    def play(self, engine: Engine, tasks: Sequence[tuple[int, int]], temperature: float, between: Callable[[], None] = lambda: None) -> list[Episode]:
        """Play one episode for each (task, number), and return them in this order.

        Args:
            between: called before each step of the engine.
        """
        episodes = [Episode(task, number, self._environment()) for task, number in tasks]
        self._call(episodes, [partial(self._reset, episode) for episode in episodes], [f"reset({e.task})" for e in episodes])
        waiting: dict[Request, Episode] = {}
        try:
            for episode in episodes:
                self._ask(engine, episode, temperature, waiting)
            while waiting:
                between()
                if acting := [(waiting.pop(request), request) for request in engine.step()]:
                    self._act(acting)
                    for episode, _ in acting:
                        self._ask(engine, episode, temperature, waiting)
        finally:
            for request in waiting:
                engine.abort(request)
        self._idle += [episode.environment for episode in episodes if not episode.fault]
        failed = [episode.environment.close for episode in episodes if episode.fault and not episode.late]
        self._calls.each(failed, [f"environment {self.rules.environment}: close()"] * len(failed))  # it has failed already, so its errors say nothing new
        return episodes

    def close(self) -> None:
        """Close the environments."""
        for environment in self._idle:
            environment.close()
        self._idle.clear()
        self._calls.close()

    def _environment(self) -> CheckedEnvironment:
        return self._idle.pop() if self._idle else make_environment(self.rules.environment, **self.rules.options)

    def _reset(self, episode: Episode) -> None:
        episode.prompt = self._read(episode, episode.environment.reset(episode.task))
        if not episode.prompt:
            raise EnvironmentFailure(f"environment {self.rules.environment}: the observation of reset({episode.task}) is an empty text")
        if len(episode.prompt) >= self._shape.context:
            raise EnvironmentFailure(
                f"environment {self.rules.environment}: the first observation has {len(episode.prompt)} tokens, and the model's context is "
                f"{self._shape.context}"
            )

    def _read(self, episode: Episode, observation: object) -> list[int]:
        return self._tokenizer.encode(text_of(observation, episode.environment.admissible, self.rules.environment))

    def _call(self, episodes: Sequence[Episode], calls: Sequence[Callable[[], None]], what: Sequence[str]) -> None:
        """Let the environments do something. If one fails, so does its episode."""
        named = [f"environment {self.rules.environment}: {text}" for text in what]
        for episode, name, found in zip(episodes, named, self._calls.each(calls, named), strict=True):
            if isinstance(found, EnvironmentFailure):
                episode.finish, episode.fault, episode.late = "error", str(found), isinstance(found, TimeoutFailure)
            elif isinstance(found, EchoError):
                raise found  # a fault of the configuration
            elif found is not None:
                episode.finish, episode.fault = "error", f"{name} has raised {type(found).__name__}: {found}"

    def _ask(self, engine: Engine, episode: Episode, temperature: float, waiting: dict[Request, Episode]) -> None:
        """Let the engine make the next action, if there is one."""
        if episode.finish:
            return
        known = episode.prompt + episode.tokens
        room = min(self.rules.max_new, self._shape.context - len(known))
        if room < 1 or len(episode.rewards) >= self.rules.max_steps:
            episode.finish = "length"
            return
        seed = np.random.SeedSequence([self.rules.seed, episode.task, episode.number, len(episode.rewards)]).generate_state(1, np.uint64)
        request = engine.submit(known, room, temperature=temperature, stop=self._ends, seed=int(seed[0]))
        waiting[request] = episode

    def _act(self, acting: Sequence[tuple[Episode, Request]]) -> None:
        actions = []
        for episode, request in acting:
            made = len(request.output)
            episode.turns.append(len(episode.tokens))
            episode.tokens += request.output
            episode.logprobs += [min(x, 0.0) for x in request.logprobs]
            episode.versions += request.versions
            episode.mask += [True] * made
            actions.append(self._tokenizer.decode([token for token in request.output if token not in self._ends]))
        calls = [partial(self._step, episode, action) for (episode, _), action in zip(acting, actions, strict=True)]
        self._call([e for e, _ in acting], calls, [f"step({a!r:.80})" for a in actions])

    def _step(self, episode: Episode, action: str) -> None:
        transition = episode.environment.step(action)
        if episode.finish:
            return  # this call comes back after its time
        after = [] if transition.terminated or transition.truncated else self._read(episode, transition.observation)
        episode.rewards.append(transition.reward)
        if "success" in transition.info:
            episode.success = bool(transition.info["success"])
        if transition.terminated or transition.truncated:
            episode.finish = "stop" if transition.terminated else "length"
            return
        after = after[: max(0, self._shape.context - len(episode.prompt) - len(episode.tokens))]
        episode.tokens += after
        episode.logprobs += [0.0] * len(after)
        episode.versions += [episode.versions[-1]] * len(after)
        episode.mask += [False] * len(after)
