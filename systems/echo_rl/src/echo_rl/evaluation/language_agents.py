"""Agents that ask a language model, which is not trained: ReAct, and Tree of Thoughts."""

from __future__ import annotations

from typing import Any

from echo_rl.backbones import BackboneError
from echo_rl.environments import CheckedEnvironment
from echo_rl.environments.proposals import parsed_action
from echo_rl.evaluation.baselines import CellSettings, NotRun, Spent
from echo_rl.evaluation.judged import judgement

__all__ = ["ReAct", "TreeOfThoughts", "parsed_action"]

_TURNS = 12  # how many of the last turns the model sees beside the first observation
_RULES = "You solve a task step by step."
_FORM = "Write one line that begins with 'Thought:', and then your next action behind 'Action:'."


class _LanguageAgent:
    """Keeps the conversation of an episode, and counts its tokens."""

    def __init__(self, environment: CheckedEnvironment, settings: CellSettings) -> None:
        assert settings.backbone is not None
        self._environment, self._backbone, self._most, self._seed = environment, settings.backbone, settings.max_tokens, settings.seed
        self._turns: list[tuple[str, str]] = []
        self._episode = self._calls = 0
        self.spent = Spent()

    def begin(self, task_seed: int) -> None:
        self._turns, self._episode, self._calls, self.spent = [], task_seed, 0, Spent()

    def _ask(self, prompts: list[list[dict[str, str]]], n: int, most: int, temperature: float) -> list[str]:
        """The model's answers. Raises BackboneError."""
        self._calls += 1
        # Each call has a seed of its own. Some interfaces refuse seeds, so only Echo's own engine gets them.
        options: dict[str, Any] = {}
        if self._own_engine and temperature:
            options["seed"] = ((self._seed * 1_000_003 + self._episode) * 10_007 + self._calls) % (1 << 62)
        try:
            found = self._backbone.generate(prompts, n=n, max_tokens=most, temperature=temperature, **options)
        except (ValueError, TimeoutError) as error:  # such as a prompt that is longer than the model's context
            raise BackboneError(f"{self._backbone.name}: {error}") from error
        prompt = 0
        for completion in found:
            used, spent = completion.usage, self.spent
            prompt = used.prompt or prompt
            spent.prompt, spent.made = spent.prompt + used.prompt, spent.made + used.made
            if self._own_engine or used.cached:
                spent.cached = (spent.cached or 0) + used.cached
                # Further completions of a prompt carry no usage of it: they share all of it.
                spent.called(prompt, used.made, used.cached if used.prompt else prompt)
            cost = completion.cost if used.prompt or used.made else 0.0
            spent.cost = None if spent.cost is None or cost is None else spent.cost + cost
        return [completion.text for completion in found]

    @property
    def _own_engine(self) -> bool:
        """Whether it is Echo's own engine, which takes seeds, and always counts what it has found. Servers may leave the count out, which looks like zero."""
        return hasattr(self._backbone, "worker")

    def _conversation(self, seen: str, asked: str) -> list[dict[str, str]]:
        """The first turns and the last ones, and what is asked now."""
        turns = self._turns if len(self._turns) <= _TURNS else [self._turns[0], *self._turns[1 - _TURNS :]]
        messages = [{"role": "system", "content": _RULES}]
        for observation, answer in turns:
            messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": answer}]
        return [*messages, {"role": "user", "content": f"{seen}\n\n{asked}"}]

    def _seen(self, observation: Any) -> str:
        if not isinstance(observation, str):
            raise NotRun(f"a language model reads text, and the observation of {self._environment.name} is a {type(observation).__name__}")
        actions = self._environment.admissible
        return observation if not actions else f"{observation}\nPossible actions:\n" + "\n".join(f"- {action}" for action in actions)


class ReAct(_LanguageAgent):
    """A thought and an action in turn, with the likeliest tokens (Yao et al., "ReAct", 2023). The text behind ``Action:`` is the action."""

    def act(self, observation: Any) -> Any:
        """Ask for the next action."""
        seen = self._seen(observation)
        answer = self._ask([self._conversation(seen, _FORM)], 1, self._most, 0.0)[0]
        self._turns.append((str(observation), answer))
        return parsed_action(answer, self._environment.admissible)


class TreeOfThoughts(_LanguageAgent):
    """For each action a search in breadth: thoughts, then actions that follow from the best ones; the model values both (Yao et al., "Tree of Thoughts",
    2023). Of three candidates at each of two levels, the best two are kept."""

    candidates, kept = 3, 2

    def act(self, observation: Any) -> Any:
        """Search for the next action."""
        seen = self._seen(observation)
        asks = ("Write one line with a thought on what to do next.", "Write your next action behind 'Action:', and nothing else.")
        thoughts = [""]
        for asked in asks:
            prompts = [self._conversation(f"{seen}\n{thought}".rstrip(), asked) for thought in thoughts]
            answers = self._ask(prompts, self.candidates, self._most, 1.0)
            found = [f"{thoughts[i // self.candidates]}\n{answer}".strip() for i, answer in enumerate(answers)]
            found = list(dict.fromkeys(found))
            judged = [self._conversation(f"{seen}\n{each}", "How likely does this lead to success? Answer with one number from 1 to 10.") for each in found]
            values = [judgement(answer) for answer in self._ask(judged, 1, 8, 0.0)]
            order = sorted(range(len(found)), key=lambda i: -values[i])
            thoughts = [found[i] for i in order[: self.kept]]
        self._turns.append((str(observation), thoughts[0]))
        return parsed_action(thoughts[0], self._environment.admissible)
