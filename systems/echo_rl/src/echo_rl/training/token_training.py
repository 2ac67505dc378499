"""Training of a language model in a text environment: what the trainer needs of it."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from echo_core import ConfigError
from echo_rl.core.bandwidth import BandwidthEfficiencyTracker
from echo_rl.engine.families.files import TensorFiles
from echo_rl.environments import CheckedEnvironment
from echo_rl.models import TrainableTransformer
from echo_rl.rollouts import FINISH_REASONS
from echo_rl.rollouts.records import PackedRecords
from echo_rl.rollouts.text_episodes import TextEpisodes
from echo_rl.rollouts.text_policy import PRINTABLE, TextRules
from echo_rl.rollouts.token_collector import schema_of
from echo_rl.training.config import TrainingConfig
from echo_rl.training.evaluation import EVALUATION_TASKS, evaluated
from echo_rl.training.learners import Learners
from echo_rl.training.players import TokenPlayer
from echo_rl.training.token_learner import TokenLearner

__all__ = ["TokenTraining"]


class TokenTraining:
    """A ``TokenLearner``, the rules of its rollouts, and its evaluation.

    Args:
        config: of the run. seed: of the run.
        device: of the learner.
        environment: one of the run, for its ``alphabet``.
    """

    kind: Literal["tokens", "segments"] = "tokens"

    def __init__(self, config: TrainingConfig, seed: int, device: torch.device, environment: CheckedEnvironment) -> None:
        if config.algorithm == "impala":
            raise ConfigError(f"algorithm='impala' trains policies of numbers, and {config.env_name} is a text environment; use 'ppo', 'grpo' or 'reinforce'")
        if config.planning is not None:
            raise ConfigError(f"planning is for policies of numbers: {config.env_name} is a text environment, whose language model reads every state already")
        if config.batch_size % config.group_size:
            raise ConfigError(f"batch_size={config.batch_size} must be a multiple of group_size={config.group_size}")
        self.config, self.seed = config, seed
        small = config.model
        if small.alphabet is None:
            alphabet = getattr(environment.environment, "alphabet", None) or PRINTABLE
            small = replace(small, alphabet=alphabet)
        environment.close()
        slots = max(1, min(config.execution.max_concurrent_rollouts, -(-config.num_actors // max(1, config.processes))))
        self.rules = TextRules(
            environment=config.env_name,
            group=config.group_size,
            seed=seed,
            options=config.env_options,
            folder=_folder(config.backbone),
            small=small,
            max_steps=config.max_steps or 32,
            max_new=config.execution.max_new_tokens,
            temperature=config.token_learner.temperature,
            timeout=config.execution.timeout,
            slots=slots,
            kv_tokens=config.execution.max_cache_size,
            scheduler=config.execution.scheduler,
            alone=config.deterministic,
            swap=config.interrupt == "swap",
            resume=config.interrupt == "resume",
            eta=config.eta,
        )
        self.schema, self.batch = schema_of(self.rules), config.batch_size // config.group_size
        shape, values = self.rules.shape(), config.algorithm == "ppo"
        if self.rules.folder is None:
            model = TrainableTransformer.random(shape, seed, device, scale=small.scale, value_head=values)
        else:
            model = TrainableTransformer(shape, TensorFiles(Path(self.rules.folder)), device, value_head=values)
        reference = copy.deepcopy(model) if config.token_learner.loss.kl_coef else None
        self.learner = TokenLearner(model, config.token_rules, seed, reference=reference)
        self.learners = Learners(self.learner, config.num_learners, config.patience)
        self._episodes = TextEpisodes(self.rules)
        self.bandwidth = BandwidthEfficiencyTracker()

    @property
    def at_once(self) -> int:
        """How many tickets an actor takes together."""
        return self.rules.at_once

    @property
    def leaves(self) -> dict[str, Any]:
        """The example of a record."""
        return self.schema.example()

    def weights(self) -> dict[str, Any]:
        """What is published."""
        return {name: tensor.cpu().numpy() for name, tensor in self.learner.model.weights().items()}

    def update(self, records: PackedRecords, version: int, learn: bool) -> dict[str, Any]:
        """Train on a batch, and return its figures. With ``learn=False`` the batch is only counted."""
        batch, columns = self.schema.unpack(records), records.batch
        good = batch.finish != FINISH_REASONS.index("error")
        success = columns["success"].reshape(-1)
        known = good & (success < 2)
        figures: dict[str, Any] = {
            "reward": float(batch.rewards[good].mean()) if good.any() else 0.0,
            "steps": int(columns["steps"].sum()),
            "episodes": int(good.sum()),
            "tokens": int(batch.mask.sum()),
            "failed": int((~good).sum()),
            "asked": int(columns["asked"].sum()),
            "hit": int(columns["hit"].sum()),
            "anew": int(columns["anew"].sum()),
            "fault": bytes(columns["fault"][: records.offsets["fault"].max(initial=0)]).decode(errors="replace")[:200],
        }
        if known.any():
            figures["success_rate"] = float(success[known].mean())
        share = figures["hit"] / figures["asked"] if figures["asked"] else 0.0
        lengths = np.diff(batch.prompt_cu_seqlens)[batch.group] + np.diff(batch.cu_seqlens)
        for reward, length in zip(batch.rewards[good].tolist(), lengths[good].tolist(), strict=True):
            self.bandwidth.record_rollout_step(reward, length, share * length)
            self.bandwidth.finish_rollout()
        self.learner.version = version  # that of the published policy, which also grows where a batch has taught nothing
        if learn and batch.mask.any():
            found = asdict(self.learners.update(batch))
            found.pop("reward"), found.pop("tokens"), found.pop("rollouts")
            figures |= {"gradient_steps": found.pop("steps"), **found}
            self.bandwidth.record_learner_update(found["policy_loss"])
        else:
            figures["skipped_groups"] = len(batch.tasks)
        return figures

    def evaluate(self, episodes: int) -> dict[str, float]:
        """Play episodes that are never trained on, with the likeliest tokens."""
        engine = self.rules.engine(self.learner.model.weights(), 0)
        played = self._episodes.play(engine, [(EVALUATION_TASKS + i, 0) for i in range(episodes)], 0.0)
        return evaluated(played)

    def player(self) -> TokenPlayer:
        """See ``EchoRLTrainer.player``."""
        return TokenPlayer(self.learner.model.weights(), self.rules)

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs."""
        return {"learner": self.learner.state(), "reference": None if self.learner.reference is None else self.learner.reference.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises ValueError if it does not fit."""
        self.learner.restore(state["learner"])
        if self.learner.reference is not None:
            self.learner.reference.load_state_dict(state["reference"])

    def close(self) -> None:
        """End the other learners, and close the environments of the evaluation."""
        self.learners.close()
        self._episodes.close()


def _folder(backbone: str | None) -> str | None:
    """The folder of a backbone. Raises ConfigError for one whose weights or tokenizer are not here."""
    if backbone is None:
        return None
    if not (Path(backbone) / "config.json").is_file():
        raise ConfigError(
            f"backbone={backbone!r} is no folder with a model's config.json. Training changes weights, which a model behind an interface does not give; "
            "download an open model, and give its folder"
        )
    if not (Path(backbone) / "tokenizer.json").is_file():
        raise ConfigError(f"backbone={backbone!r} has no tokenizer.json, without which its texts would be other tokens than those it knows; put it there")
    return backbone
