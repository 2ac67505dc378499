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
        open: how many tokens at the end are those of an action that is not complete, because the episode was interrupted.
        finish: one of ``FINISH_REASONS``, or "" while it is played.
        success: what the environment says of it at the end; None if it says nothing.
        fault: why the environment has failed, or "".
        late: whether the environment did not answer in time.
    """

    task: int
    number: int
    environment: CheckedEnvironment | None = None
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    open: int = 0
    finish: str = ""
    success: bool | None = None
    fault: str = ""
    late: bool = False

    @property
    def reward(self) -> float:
        """Of the whole episode; 0 if the environment has failed."""
        return 0.0 if self.fault else float(sum(self.rewards))

    def add(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Add tokens of an action. They begin one, or go on with the one that is open."""
        if not self.open:
            self.turns.append(len(self.tokens))
        self.tokens += tokens
        self.logprobs += [min(x, 0.0) for x in logprobs]
        self.versions += versions
        self.mask += [True] * len(tokens)
        self.open += len(tokens)

    def copy(self, other: Episode, places: Sequence[int]) -> None:
        """Add tokens of another episode's action."""
        self.add([other.tokens[i] for i in places], [other.logprobs[i] for i in places], [other.versions[i] for i in places])

    def rollout(self) -> Rollout:
        """The episode as the learner gets it, or, with the finish reason ``"abort"``, as another actor gets it that goes on with it. No token of an episode
        whose environment has failed counts."""
        mask = np.array(self.mask, bool) & (not self.fault)
        turns = None if not self.tokens else np.array(self.turns, np.int32)
        tokens, versions = np.array(self.tokens, np.int32), np.array(self.versions, np.int32)
        return Rollout(tokens, np.array(self.logprobs, np.float32), versions, mask, turns, self.reward, self.number, self.finish or "abort")


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

    def play(
        self,
        engine: Engine,
        tasks: Sequence[tuple[int, int]],
        temperature: float,
        between: Callable[[], bool] = lambda: False,
        begun: Sequence[Episode | None] = (),
    ) -> list[Episode]:
        """Play one episode for each (task, number), and return them in this order.

        Args:
            between: called before each step of the engine. Where it returns True, the episodes that are not over are interrupted between two tokens.
            begun: for each of them None, or the episode if it was begun before. It is over, or ``replay`` has brought it to where it was interrupted.
        """
        episodes = [one or Episode(*key, self._environment()) for key, one in zip(tasks, begun or [None] * len(tasks), strict=True)]
        self._begin([episode for episode in episodes if not episode.prompt and not episode.finish])
        waiting: dict[Request, Episode] = {}
        try:
            for episode in episodes:
                self._ask(engine, episode, temperature, waiting)
            while waiting and not between():
                if acting := [(waiting.pop(request), request) for request in engine.step()]:
                    self._act(acting)
                    for episode, _ in acting:
                        self._ask(engine, episode, temperature, waiting)
        finally:
            for request, episode in waiting.items():
                engine.abort(request)
                if request.output:
                    episode.add(request.output, request.logprobs, request.versions)
        self.leave(episodes)
        return episodes

    def replay(self, begun: Sequence[Episode]) -> list[Episode]:
        """Let environments begin the tasks of episodes that were interrupted, and take their actions again: that brings an environment to the same state.

        Returns these episodes with their environments, to be played on. Those that are over come back as they are.

        Raises EnvironmentFailure if an environment says something else than is recorded, or fails: it is another one, or its seed does not decide everything.
        """
        before = [episode for episode in begun if not episode.finish]
        again = [Episode(one.task, one.number, self._environment()) for one in before]
        self._begin(again)
        for turn in range(max((len(one.turns) for one in before), default=0)):
            acting = []
            for episode, one in zip(again, before, strict=True):
                # The last action is not taken if it is open.
                if not episode.finish and turn < len(one.turns) - (one.open > 0):
                    end = one.turns[turn + 1] if turn + 1 < len(one.turns) else len(one.tokens)
                    episode.copy(one, [i for i in range(one.turns[turn], end) if one.mask[i]])
                    acting.append(episode)
            self._take(acting)
        faults = []
        for episode, one in zip(again, before, strict=True):
            if one.open:
                episode.copy(one, range(one.turns[-1], len(one.tokens)))
            same = all(getattr(episode, name) == getattr(one, name) for name in ("prompt", "tokens", "turns", "finish"))
            if episode.fault:
                faults.append(episode.fault)
            elif not same or np.float32(episode.reward) != np.float32(one.reward):
                faults.append(f"environment {self.rules.environment}: the same actions after reset({one.task}) are followed by something else than before")
        if faults:
            self.leave(again)
            raise EnvironmentFailure(faults[0])
        found = iter(again)
        return [episode if episode.finish else next(found) for episode in begun]

    def leave(self, episodes: Sequence[Episode]) -> None:
        """Keep the environments of episodes that are played no further, and close those that have failed."""
        self._idle += [episode.environment for episode in episodes if not episode.fault and episode.environment is not None]
        failed = [episode.environment.close for episode in episodes if episode.fault and not episode.late and episode.environment is not None]
        self._calls.each(failed, [f"environment {self.rules.environment}: close()"] * len(failed))  # it has failed already, so its errors say nothing new
        for episode in episodes:
            episode.environment = None

    def close(self) -> None:
        """Close the environments."""
        idle, self._idle = self._idle, []
        self._calls.close([each.close for each in idle], [f"environment {self.rules.environment}: close()"] * len(idle))

    def _environment(self) -> CheckedEnvironment:
        return self._idle.pop() if self._idle else make_environment(self.rules.environment, **self.rules.options)

    def _begin(self, episodes: Sequence[Episode]) -> None:
        self._call(episodes, [partial(self._reset, episode) for episode in episodes], [f"reset({e.task})" for e in episodes])

    def _reset(self, episode: Episode) -> None:
        assert episode.environment is not None
        prompt = self._read(episode, episode.environment.reset(episode.task))
        if not prompt:
            raise EnvironmentFailure(f"environment {self.rules.environment}: the observation of reset({episode.task}) is an empty text")
        if len(prompt) >= self._shape.context:
            hint = "; raise model.context" if self.rules.folder is None else ""
            raise EnvironmentFailure(
                f"environment {self.rules.environment}: the first observation has {len(prompt)} tokens, and the model's context is {self._shape.context}{hint}"
            )
        episode.prompt = prompt  # only now: no record could hold a longer one

    def _read(self, episode: Episode, observation: object) -> list[int]:
        assert episode.environment is not None
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
        room = min(self.rules.max_new - episode.open, self._shape.context - len(known))
        if room < 1 or len(episode.rewards) >= self.rules.max_steps:
            episode.finish = "length"
            return
        seed = np.random.SeedSequence([self.rules.seed, episode.task, episode.number, len(episode.rewards)]).generate_state(1, np.uint64)
        request = engine.submit(known, room, temperature=temperature, stop=self._ends, seed=int(seed[0]))
        for _ in range(episode.open):
            request.random.random()  # a token takes one number, so the draws are those of an action that was not interrupted
        waiting[request] = episode

    def _act(self, acting: Sequence[tuple[Episode, Request]]) -> None:
        for episode, request in acting:
            episode.add(request.output, request.logprobs, request.versions)
        self._take([episode for episode, _ in acting])

    def _take(self, episodes: Sequence[Episode]) -> None:
        """Let the environments take the actions that are open. They are complete."""
        actions = []
        for episode in episodes:
            actions.append(self._tokenizer.decode([token for token in episode.tokens[episode.turns[-1] :] if token not in self._ends]))
            episode.open = 0
        calls = [partial(self._step, episode, action) for episode, action in zip(episodes, actions, strict=True)]
        self._call(episodes, calls, [f"step({action!r:.80})" for action in actions])

    def _step(self, episode: Episode, action: str) -> None:
        assert episode.environment is not None
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
