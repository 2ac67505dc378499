"""The settings of a training run, as arguments, or as the section ``[rl]`` of a TOML file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from echo_core import ConfigError
from echo_core.base.option_reader import build_options
from echo_core.config.layers import Layer, from_command_line, from_environment, from_file, from_mapping
from echo_rl.checks import Rule, check_fields, flag, instance, one_of, optional, real, whole
from echo_rl.core import ExecutionConfig, GRPOConfig, PlanningConfig, PPOConfig, ReplayConfig
from echo_rl.core.corrections import Correction
from echo_rl.rollouts.text_policy import SmallModel
from echo_rl.training.token_learner import TokenLearnerConfig

__all__ = ["SECTION", "TrainingConfig"]

SECTION = "rl"


@dataclass(frozen=True)
class TrainingConfig:
    """A training run. A wrong value is a ValueError that names its field.

    Steps are actions in the environment, of all environments together.

    Attributes:
        env_name: such as ``"digits"`` or ``"gym:CartPole-v1"``; ``echo_rl.environments`` has them. Text environments train a language model; environments
            that observe a box of numbers and have discrete actions train a small policy, with ``algorithm="ppo"`` or ``"impala"``.
        total_timesteps: after how many steps training ends.
        learning_starts: the steps before it are counted and not trained on.
        train_frequency: how many steps each environment of numbers makes for an update. Text environments have ``batch_size`` rollouts for an update.
        evaluation_frequency, save_frequency: after how many steps the policy is evaluated, and saved if there is an ``output_dir``. The last policy is both.
        num_actors: how many environments (of numbers), or rollouts at most (of text), run at once, over all actor processes.
        num_learners: how many processes share each batch; this one is the first. The update is that of one learner, except for the order of its sums.
        batch_size: rollouts of an update of a language model, a multiple of ``group_size``; steps of one gradient step of a policy of numbers.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``. Without CUDA, ``"cuda"`` warns and uses the CPU; with ``strict_device`` it is an error.
        algorithm: ``"ppo"``; for language models also ``"grpo"`` and ``"reinforce"``, and for policies of numbers ``"impala"``, the policy gradient with
            V-trace (``echo_rl.core.vtrace``).
        backbone: the folder of a language model, or None for ``model``, which begins with random weights. The name of a model that gives no weights, such as
            ``"gpt-4o"``, trains a small policy that chooses among the actions that it proposes (``echo_rl.environments.proposals``).
        transport: where actors connect; any transport of Echo.
        eta: by how many versions rollouts may be older than the policy that is trained with them. 0 is the synchronous loop.
        correction: how the loss corrects for older policies: ``echo_rl.core.corrections``.
        interrupt: what a rollout does when a new policy comes: ``"finish"`` ends with the one that it began with; ``"swap"`` goes on with the new one.
            ``"resume"`` is for text environments. An actor that gets SIGTERM hands back what it has made, and any actor goes on with it, by the newest
            policy. So does an actor to which a new policy comes, if all of its groups are less than ``eta`` versions old; otherwise it goes on as with
            ``"swap"``, because the learner waits for them. Environments take the recorded actions again; where one does not do the same then, its group is
            begun anew, which ``TrainingMetrics.anew`` counts.
        actor_processes: None starts one for each core, at most ``num_actors``; 0 makes the rollouts in this process.
        seed: of everything. None draws one.
        planning: the shape of a latent plan of the last states, which conditions a policy of numbers; its temporal divergence is part of the loss. None
            acts on the last state alone. Text environments refuse it: a language model reads the whole conversation.
        execution: ``max_concurrent_rollouts``, ``max_cache_size``, ``max_new_tokens`` (of an action) and ``scheduler`` are those of each actor's engine, and
            ``timeout`` is the most seconds that a call of the environment may take.
        replay: keeps the segments of a policy of numbers and trains on as many of them as on new ones (``echo_rl.training.segment_replay``). It needs
            ``algorithm="impala"``, which corrects for older policies. None trains on each segment in one update. Checkpoints have its segments.
        ppo, grpo: the rules of updates; ``"impala"`` takes its rules from ``ppo``, see ``VTraceLearner``. ``token_learner``: those of language models; its
            loss takes ``advantages`` from ``algorithm``, ``correction``, and ``scale`` and ``loss`` from ``grpo``.
        group_size: rollouts of each task of a text environment.
        max_steps: the most steps of an episode; None leaves it to the environment, or is 32 for text.
        evaluation_episodes: episodes of an evaluation.
        deterministic: whether the run is the same bit by bit as every other one with these values, also if it was stopped and resumed. It needs ``eta=0``, a
            text environment and a seed, and uses one thread of torch.
        env_options: what ``make_environment`` takes further. imports: modules that register environments; actors import them first.
        lease: after how many seconds a ticket that is not done is given to another actor. An actor that dies gives it back at once.
        patience: after how many seconds without a batch, or without another learner's share of an update, training ends with an error that says who is
            waited for.
        restarts: how many actors may die within 10 minutes.
        output_dir: where ``checkpoint.npz`` and ``metrics.jsonl`` are written.
    """

    env_name: str
    total_timesteps: int
    learning_starts: int = 10_000
    train_frequency: int = 4
    evaluation_frequency: int = 10_000
    save_frequency: int = 50_000
    num_actors: int = 128
    num_learners: int = 1
    batch_size: int = 256
    device: str = "auto"
    algorithm: Literal["ppo", "grpo", "reinforce", "impala"] = field(default="ppo", kw_only=True)
    backbone: str | None = field(default=None, kw_only=True)
    transport: str = field(default="tcp://127.0.0.1:0", kw_only=True)
    eta: int = field(default=1, kw_only=True)
    correction: Correction = field(default="ppo", kw_only=True)
    interrupt: Literal["finish", "swap", "resume"] = field(default="finish", kw_only=True)
    actor_processes: int | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    planning: PlanningConfig | None = field(default=None, kw_only=True)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig, kw_only=True)
    replay: ReplayConfig | None = field(default=None, kw_only=True)
    ppo: PPOConfig = field(default_factory=PPOConfig, kw_only=True)
    grpo: GRPOConfig = field(default_factory=GRPOConfig, kw_only=True)
    token_learner: TokenLearnerConfig = field(default_factory=TokenLearnerConfig, kw_only=True)
    model: SmallModel = field(default_factory=SmallModel, kw_only=True)
    group_size: int = field(default=16, kw_only=True)
    max_steps: int | None = field(default=None, kw_only=True)
    evaluation_episodes: int = field(default=100, kw_only=True)
    deterministic: bool = field(default=False, kw_only=True)
    strict_device: bool = field(default=False, kw_only=True)
    env_options: dict[str, Any] = field(default_factory=dict, kw_only=True)
    imports: list[str] = field(default_factory=list, kw_only=True)
    lease: float = field(default=300.0, kw_only=True)
    patience: float = field(default=300.0, kw_only=True)
    restarts: int = field(default=8, kw_only=True)
    output_dir: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        text, many = instance(str), whole(1)
        rules: dict[str, Rule] = {"env_name": _filled, "total_timesteps": many, "learning_starts": whole(0)}
        rules |= dict.fromkeys(("train_frequency", "evaluation_frequency", "save_frequency", "num_actors", "num_learners", "batch_size"), many)
        rules |= {"device": text, "algorithm": one_of("ppo", "grpo", "reinforce", "impala")}
        rules |= {"backbone": optional(_filled), "transport": _filled, "eta": whole(0)}
        rules |= {"correction": one_of("none", "ppo", "tis", "decoupled"), "interrupt": one_of("finish", "swap", "resume")}
        rules |= {"actor_processes": optional(whole(0)), "seed": optional(whole(0, 2**31 - 1)), "planning": optional(instance(PlanningConfig))}
        rules |= {"execution": instance(ExecutionConfig), "replay": optional(instance(ReplayConfig)), "ppo": instance(PPOConfig)}
        rules |= {"grpo": instance(GRPOConfig), "token_learner": instance(TokenLearnerConfig), "model": instance(SmallModel), "group_size": many}
        rules |= {"max_steps": optional(many), "evaluation_episodes": many, "deterministic": flag(), "strict_device": flag()}
        rules |= {"env_options": instance(dict), "imports": instance(list), "lease": real(above=0), "patience": real(above=0)}
        rules |= {"restarts": whole(0), "output_dir": optional(_filled)}
        check_fields(self, **rules)
        if (fault := self._fault()) is not None:
            raise ValueError(fault)

    def _fault(self) -> str | None:
        """What does not fit together."""
        if self.learning_starts >= self.total_timesteps:
            return f"learning_starts={self.learning_starts} must be less than total_timesteps={self.total_timesteps}; nothing would be learned"
        if self.device not in ("auto", "cpu") and self.device.partition(":")[0] != "cuda":
            return f"device must be 'auto', 'cpu' or 'cuda', got {self.device!r}"
        if self.replay is not None and self.algorithm != "impala":
            return f"replay needs algorithm='impala', whose V-trace corrects for older policies; {self.algorithm!r} does not estimate their advantages"
        if self.planning is not None and self.num_learners > 1:
            return f"num_learners={self.num_learners} and planning: plans are measured by the variance of whole minibatches, which learners divide; use 1"
        if self.algorithm == "impala" and self.correction != "ppo":
            return f"correction={self.correction!r} has no meaning with algorithm='impala', which corrects by V-trace; leave it out"
        if self.algorithm == "grpo" and self.group_size < 2:
            return "group_size must be at least 2 with algorithm='grpo', which compares the rollouts of a task"
        if self.deterministic and (self.eta or self.seed is None):
            return f"deterministic needs eta=0 and a seed, got eta={self.eta} and seed={self.seed}: at eta=1, a rollout's policy depends on who is faster"
        if self.deterministic and self.interrupt != "finish":
            return f"interrupt={self.interrupt!r} changes a policy when it comes, which deterministic excludes; use 'finish'"
        loss = self.token_learner.loss
        for where, value in (("ppo.correction", self.ppo.correction), ("token_learner.loss.correction", loss.correction)):
            if value not in ("ppo", self.correction):
                return f"{where}={value!r} is not correction={self.correction!r}; give correction only"
        for name in ("scale", "loss"):
            if getattr(loss, name) not in (getattr(GRPOConfig(), name), getattr(self.grpo, name)):
                return f"token_learner.loss.{name}={getattr(loss, name)!r} is not grpo.{name}={getattr(self.grpo, name)!r}; give grpo.{name} only"
        if loss.advantages not in ("grpo", self.algorithm):
            return f"token_learner.loss.advantages={loss.advantages!r} is not algorithm={self.algorithm!r}; give algorithm only"
        return None

    @property
    def processes(self) -> int:
        """How many actor processes are started."""
        return min(self.num_actors, os.cpu_count() or 1) if self.actor_processes is None else self.actor_processes

    @property
    def token_rules(self) -> TokenLearnerConfig:
        """The rules of updates of a language model, as the fields above decide them."""
        assert self.algorithm != "impala", "token training has refused it"
        own = self.token_learner.loss
        loss = replace(own, advantages=self.algorithm, correction=self.correction, scale=self.grpo.scale, loss=self.grpo.loss)
        return replace(self.token_learner, loss=loss)

    @property
    def ppo_rules(self) -> PPOConfig:
        """The rules of updates of a policy of numbers, as the fields above decide them."""
        return replace(self.ppo, correction=self.correction, minibatch_size=self.batch_size, seed=self.seed)

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def load(
        cls,
        *sources: str | os.PathLike[str] | Mapping[str, Any],
        env: Mapping[str, str] = os.environ,
        command_line: Iterable[str] = (),
        overrides: Mapping[str, Any] | None = None,
    ) -> TrainingConfig:
        """Read the section ``[rl]``; a later source wins over an earlier one, key by key. Errors say where a value was given.

        Args:
            sources: paths of TOML files, or mappings of sections. Other sections of a file are not read.
            env: variables such as ``ECHO_RL__BATCH_SIZE`` win over the sources.
            command_line: items such as ``"rl.ppo.gamma=0.9"`` win over the environment.
            overrides: fields that win over everything; None is no value.

        Raises:
            ConfigError: a file cannot be read, a key is unknown, or a value does not fit; the message has the origin and the key.
        """
        layer = Layer()
        for number, source in enumerate(sources, 1):
            layer.merge(from_mapping(source, f"mapping {number}") if isinstance(source, Mapping) else from_file(source))
        layer.merge(from_environment(env))
        layer.merge(from_command_line(command_line))
        given = {name: value for name, value in (overrides or {}).items() if value is not None}
        layer.merge(from_mapping({SECTION: given} if given else {}, "arguments"))
        section = layer.nested().get(SECTION, {})
        if not isinstance(section, Mapping):
            raise ConfigError(f"{layer.dotted_origins()[SECTION]}: {SECTION}: must be a table: [{SECTION}]")
        return build_options(cls, section, SECTION, layer.dotted_origins())


def _filled(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "a text that is not empty"
