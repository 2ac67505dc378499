"""A learner of language models: it improves a transformer on packed rollouts.

learner = TokenLearner(TrainableTransformer.random(config), TokenLearnerConfig(learning_rate=1e-3))
metrics = learner.update(batch)                                 # a TokenBatch
engine.update_weights(learner.model.weights(), learner.version)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from echo_rl.checks import check, check_fields, instance, optional, real, whole
from echo_rl.core.grpo import token_weights
from echo_rl.core.process_group import ALONE, ProcessGroup, divide, sum_figures, sum_gradients
from echo_rl.models import TrainableTransformer
from echo_rl.rollouts import FINISH_REASONS, TokenBatch
from echo_rl.training.token_losses import FIGURES, Targets, TokenLossConfig, of_groups, of_values, token_loss

Rows = npt.NDArray[np.int64]
_UNCOUNTED = [FINISH_REASONS.index(reason) for reason in ("error", "abort")]


@dataclass(frozen=True)
class TokenLearnerConfig:
    """Rules of an update.

    Attributes:
        loss: what is minimised.
        learning_rate: of Adam.
        max_grad_norm: the greatest norm of the gradient. A gradient with a greater norm is scaled down to it.
        temperature: at which the tokens were drawn; the engine's log-probabilities are those at its temperature.
        micro_tokens: the most tokens that go through the model at once, prompts included; a longer rollout goes alone. The gradient is that of all.
        epochs: how often an update goes through its batch.
        minibatches: how many gradient steps an epoch has. The rollouts of each are drawn at random; with 1, a step uses the whole batch.
    """

    loss: TokenLossConfig = field(default_factory=TokenLossConfig)
    learning_rate: float = 1e-5
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    micro_tokens: int = 16_384
    epochs: int = 1
    minibatches: int = 1

    def __post_init__(self) -> None:
        check_fields(
            self,
            loss=instance(TokenLossConfig),
            learning_rate=real(above=0),
            max_grad_norm=real(above=0),
            temperature=real(above=0),
            micro_tokens=whole(1),
            epochs=whole(1),
            minibatches=whole(1),
        )


@dataclass(frozen=True)
class TokenMetrics:
    """Figures of an update. Losses and ``gradient_norm`` are means over its gradient steps.

    Attributes:
        loss: all parts with their coefficients. policy_loss, value_loss: without them.
        kl: the k3 estimate of the divergence from the policies that drew the tokens. reference_kl: from the reference model. Both, and ``entropy`` (of the
            distribution of each token), are means over the tokens that count.
        clip_share, mean_correction, capped_share: see ``corrections.CorrectionMetrics``.
        gradient_norm: before it is scaled down.
        lag, most_lag: how many versions older than the learner's the tokens are, on average and at most.
        reward: the mean of the rollouts that did not fail.
        rollouts, tokens: how many came, and how many of their tokens count.
        skipped_groups: groups whose rewards are all equal; GRPO leaves them out.
        steps: gradient steps. 0: all groups were skipped, and nothing changed.
    """

    loss: float = 0.0
    policy_loss: float = 0.0
    value_loss: float = 0.0
    kl: float = 0.0
    reference_kl: float = 0.0
    entropy: float = 0.0
    clip_share: float = 0.0
    mean_correction: float = 1.0
    capped_share: float = 0.0
    gradient_norm: float = 0.0
    lag: float = 0.0
    most_lag: int = 0
    reward: float = 0.0
    rollouts: int = 0
    tokens: int = 0
    skipped_groups: int = 0
    steps: int = 0


class TokenLearner:
    """Improves a model on batches of rollouts.

    Args:
        model: what is trained. ``advantages="ppo"`` needs its value head.
        config: the rules.
        seed: of the order of the rollouts with ``minibatches > 1``.
        reference: the model from which ``kl_coef`` keeps the policy near. It is not changed, and it is not part of ``state``.

    Attributes:
        version: of the model; each update that takes a gradient step adds 1. Rollouts are to be made by this version or an older one.
        updates, tokens, skipped_groups: counters over all updates.
        group: the learners that share each batch; each is given the whole of it.

    Raises:
        ValueError: a value head or a reference is missing.
    """

    def __init__(
        self, model: TrainableTransformer, config: TokenLearnerConfig | None = None, seed: int = 0, *, reference: TrainableTransformer | None = None
    ) -> None:
        check("seed", seed, whole(0))
        self.model, self.config, self.reference = model, config or TokenLearnerConfig(), reference
        if self.config.loss.advantages == "ppo" and model.value_head is None:
            raise ValueError('advantages="ppo" needs a model with a value head; make it with value_head=True')
        if self.config.loss.kl_coef and reference is None:
            raise ValueError(f"kl_coef={self.config.loss.kl_coef} needs a reference model")
        self.version = self.updates = self.tokens = self.skipped_groups = 0
        self.baseline: float | None = None
        self.group: ProcessGroup = ALONE
        self._adam = torch.optim.Adam(model.parameters(), lr=self.config.learning_rate)
        self._random = torch.Generator().manual_seed(seed)

    def update(self, batch: TokenBatch) -> TokenMetrics:
        """Take the gradient steps of one batch, whose prompts may be joined already or not.

        Rollouts that ended with "error" or "abort" say nothing of the policy. They are left out of the loss, of the advantages of their group and of the
        baseline.

        Raises:
            ValueError: an array has another shape than its tokens, a number is not finite, a log-probability is positive, a token that counts has no token
                before it or comes from a later version, the model does not know a token or is too short for a rollout, or nothing counts. Nothing has
                changed then. Also if a gradient is not finite: the step that would have used it is not taken.
        """
        batch, loss = _checked(batch.with_prompts() if len(batch.prompts) else batch, self.version), self.config.loss
        mask, ends = batch.mask, batch.cu_seqlens
        self.model.check(self._tensor(batch.tokens), self._tensor(ends))
        rewards = batch.rewards.astype(np.float64)
        used = ~np.isin(batch.finish, _UNCOUNTED)
        mean, skipped = (float(rewards[used].mean()) if used.any() else 0.0), 0
        if loss.advantages == "grpo":
            each, used = of_groups(rewards, batch.group, loss.grpo, used)
            skipped = len(np.unique(batch.group)) - len(np.unique(batch.group[used]))
        elif loss.advantages == "reinforce":
            each = rewards - (mean if self.baseline is None else self.baseline)
        counts = np.diff(np.concatenate([[0], np.cumsum(mask)])[ends])
        rollouts = np.flatnonzero(used & (counts > 0))
        data = self._before(batch, rollouts)
        if loss.advantages == "ppo":
            cut = batch.finish == FINISH_REASONS.index("length") if loss.bootstrap else np.zeros(len(batch), bool)
            values = data.pop("values").double().cpu().numpy()
            advantages, returns = of_values(values, rewards, mask, ends, cut, loss.gamma, loss.gae_lambda)
            data["returns"] = self._tensor(returns, torch.float32)
        else:
            advantages = np.repeat(each, np.diff(ends))
        data["advantages"] = self._tensor(advantages, torch.float32)
        lags = self.version - batch.versions[mask]
        figures, steps = self._steps(batch, data, rollouts)
        self.updates += 1
        self.tokens, self.skipped_groups = self.tokens + int(mask.sum()), self.skipped_groups + skipped
        if loss.advantages == "reinforce" and len(rollouts):
            self.baseline = mean if self.baseline is None else loss.baseline_decay * self.baseline + (1 - loss.baseline_decay) * mean
        sizes: dict[str, Any] = {"reward": mean, "rollouts": len(batch), "tokens": int(mask.sum()), "skipped_groups": skipped, "steps": steps}
        return TokenMetrics(**figures, lag=float(lags.mean()), most_lag=int(lags.max()), **sizes)

    def _before(self, batch: TokenBatch, rollouts: Rows) -> dict[str, Tensor]:
        """The tensors of the batch, and what the models say of its tokens before the first step."""
        named = {"tokens": batch.tokens, "mask": batch.mask, "behaviour": batch.logprobs}
        data = {name: self._tensor(array) for name, array in named.items()}
        own = self.config.loss.correction == "decoupled" or self.config.loss.advantages == "ppo"
        wanted = [("", self.model)] * own + [("reference", self.reference)] * (self.reference is not None)
        data["proximal"] = data["behaviour"]
        for name, model in wanted:
            assert model is not None
            found = torch.zeros(2, len(batch.tokens), device=self.model.device)
            with torch.no_grad():
                for rows, cu_seqlens in self._pieces(batch, self._share(batch, rollouts)):
                    scores = model.score(data["tokens"][rows], cu_seqlens, self.config.temperature)
                    found[0, rows] = scores.log_probs
                    if scores.values is not None:
                        found[1, rows] = scores.values
            self.group.all_reduce(found)
            data |= {"reference": found[0]} if name else {"proximal": found[0], "values": found[1]}
        return data

    def _steps(self, batch: TokenBatch, data: dict[str, Tensor], rollouts: Rows) -> tuple[dict[str, Any], int]:
        config, sums, steps, tokens = self.config, dict[str, float](), 0, 0
        parameters = list(self.model.parameters())
        for _ in range(config.epochs if len(rollouts) else 0):
            order = rollouts[torch.randperm(len(rollouts), generator=self._random).numpy()] if config.minibatches > 1 else rollouts
            for chosen in np.array_split(order, min(config.minibatches, len(rollouts))):
                self._adam.zero_grad()
                for name, value in self._gradient(batch, data, np.sort(chosen)).items():
                    sums[name] = sums.get(name, 0.0) + value
                norm = float(nn.utils.clip_grad_norm_(parameters, config.max_grad_norm))
                if not np.isfinite(norm):
                    self._adam.zero_grad()
                    raise ValueError(f"the gradient is not finite (loss {sums['loss']}); this step was not taken")
                self._adam.step()
                sums["gradient_norm"] = sums.get("gradient_norm", 0.0) + norm
                # Here, and not at the end: the weights are new ones, also if a later step fails.
                self.version += steps == 0
                steps += 1
                tokens += sum(int(batch.mask[batch.cu_seqlens[i] : batch.cu_seqlens[i + 1]].sum()) for i in chosen)
        by_step = {"loss", "policy_loss", "value_loss", "gradient_norm"}
        return {name: value / (steps if name in by_step else tokens) for name, value in sums.items()}, steps

    def _gradient(self, batch: TokenBatch, data: dict[str, Tensor], chosen: Rows) -> dict[str, float]:
        """Add the gradient of the chosen rollouts' loss to the parameters, piece by piece, and those of the other learners. Return the sums of the figures."""
        all_rows, _ = self._rows(batch, chosen)
        lengths = self._tensor(np.diff(batch.cu_seqlens)[chosen], torch.int64)
        weights = torch.zeros(len(batch.tokens), device=self.model.device)
        weights[all_rows] = token_weights(data["mask"][all_rows], lengths, self.config.loss.grpo)
        sums: dict[str, float] = {}
        for rows, cu_seqlens in self._pieces(batch, self._share(batch, chosen)):
            scores = self.model.score(data["tokens"][rows], cu_seqlens, self.config.temperature)
            given = {name: data[name][rows] for name in ("mask", "advantages", "behaviour", "proximal", "returns", "reference") if name in data}
            # The state before a token ends with the token before it. The first token of a rollout never counts.
            values = None if scores.values is None else scores.values.roll(1)
            loss, figures = token_loss(scores.log_probs, scores.entropy, values, Targets(weights=weights[rows], **given), self.config.loss)
            loss.backward()  # type: ignore[no-untyped-call]
            for name, value in figures.items():
                sums[name] = sums.get(name, 0.0) + value
        sum_gradients(self.model.parameters(), self.group)
        return sum_figures(sums, FIGURES, self.group)

    def _share(self, batch: TokenBatch, rollouts: Rows) -> Rows:
        """Those of some rollouts that this learner goes through. All learners have nearly as many tokens."""
        return rollouts[divide(np.diff(batch.cu_seqlens)[rollouts], self.group)]

    def _pieces(self, batch: TokenBatch, rollouts: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        """Split rollouts into pieces of at most ``micro_tokens`` tokens; see ``_rows``."""
        piece: list[int] = []
        room = self.config.micro_tokens
        for i in rollouts.tolist():
            length = int(batch.cu_seqlens[i + 1] - batch.cu_seqlens[i])
            if piece and length > room:
                yield self._rows(batch, np.array(piece))
                piece, room = [], self.config.micro_tokens
            piece.append(i)
            room -= length
        if piece:
            yield self._rows(batch, np.array(piece))

    def _rows(self, batch: TokenBatch, rollouts: Rows) -> tuple[Tensor, Tensor]:
        """Return which tokens of the batch are those of some rollouts, and where each rollout begins among them."""
        ends = batch.cu_seqlens
        rows = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in rollouts])
        return self._tensor(rows), self._tensor(np.concatenate([[0], np.cumsum(np.diff(ends)[rollouts])]))

    def _tensor(self, array: npt.NDArray[Any], dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(array, dtype=dtype, device=self.model.device)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return copies of everything that a continued run needs: ``"tensors"`` by name, and ``"values"``, which JSON can hold."""
        tensors = {f"model.{name}": parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            tensors |= {f"adam.{kind}.{name}": value.clone() for kind, value in self._adam.state.get(parameter, {}).items()}
        tensors["random"] = self._random.get_state()
        counters = {name: getattr(self, name) for name in ("version", "updates", "tokens", "skipped_groups", "baseline")}
        return {"tensors": tensors, "values": {"config": asdict(self.config), **counters}}

    def restore(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on where ``state`` was taken, with the same results bit by bit.

        Raises:
            ValueError: the state is of another config or model, it lacks a name, or a number is not finite. Nothing has changed then.
        """
        tensors, values, own = state["tensors"], state["values"], dict(self.model.named_parameters())
        mine = asdict(self.config)
        if wrong := [name for name in mine if values["config"].get(name) != mine[name]]:
            raise ValueError(f"the state was made with {wrong[0]}={values['config'].get(wrong[0])!r}, and this learner has {mine[wrong[0]]!r}")
        kinds = ("step", "exp_avg", "exp_avg_sq")
        trained = [name for name in own if f"adam.step.{name}" in tensors]
        needed = {f"model.{name}": p.shape for name, p in own.items()} | {"random": self._random.get_state().shape}
        needed |= {f"adam.{kind}.{name}": torch.Size() if kind == "step" else own[name].shape for name in trained for kind in kinds}
        if differ := sorted(needed.keys() ^ tensors.keys()):
            raise ValueError(f"the state's tensors are not those of this model: {differ[0]!r} and {len(differ) - 1} others are missing or unknown")
        for name, shape in needed.items():
            if tensors[name].shape != shape or not torch.isfinite(tensors[name]).all():
                raise ValueError(
                    f"the state's tensor {name!r} has the shape {tuple(tensors[name].shape)} or numbers that are not finite; {tuple(shape)} is needed"
                )
        counters = {name: values[name] for name in ("version", "updates", "tokens", "skipped_groups")}
        for name, value in counters.items():
            check(name, value, whole(0))
        check("baseline", values["baseline"], optional(real()))
        self._random.set_state(tensors["random"].cpu())
        self._adam.state.clear()
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(tensors[f"model.{name}"])
                if name in trained:
                    # Adam keeps its count of steps on the CPU.
                    found = {kind: tensors[f"adam.{kind}.{name}"].clone() for kind in kinds}
                    self._adam.state[parameter] = {kind: x.cpu() if kind == "step" else x.to(parameter.device) for kind, x in found.items()}
        vars(self).update(counters, baseline=values["baseline"])


def _checked(batch: TokenBatch, version: int) -> TokenBatch:
    """Return the batch with a log-probability of 0 where a token doesn't count. Raise ValueError; see ``TokenLearner.update``."""
    n, ends, mask = len(batch.tokens), batch.cu_seqlens, batch.mask
    for name in ("logprobs", "versions", "mask"):
        if getattr(batch, name).shape != (n,):
            raise ValueError(f"{name} has the shape {getattr(batch, name).shape}, and there are {n} tokens")
    for name in ("group", "finish"):
        if getattr(batch, name).shape != batch.rewards.shape:
            raise ValueError(f"{name} has the shape {getattr(batch, name).shape}, and there are {len(batch)} rewards")
    if mask.dtype != np.bool_ or not mask.any():
        raise ValueError("no token of the batch counts; its mask must be bool, and true for the tokens of the policy")
    if ends.shape != (len(batch) + 1,) or ends[0] != 0 or ends[-1] != n or (np.diff(ends) < 0).any():
        raise ValueError(f"cu_seqlens must ascend from 0 to the {n} tokens, with an end for each of {len(batch)} rollouts")
    if not np.isfinite(batch.rewards).all():
        raise ValueError(f"the reward of rollout {np.flatnonzero(~np.isfinite(batch.rewards))[0]} is not finite")
    first = ends[:-1][np.diff(ends) > 0]
    if mask[first].any():
        raise ValueError("the first token of a rollout counts, and no token is before it; give the rollouts a prompt")
    logprobs = np.where(mask, batch.logprobs, np.float32(0))
    if not np.isfinite(logprobs).all() or (logprobs > 1e-4).any():
        at = int(np.flatnonzero(~np.isfinite(logprobs) | (logprobs > 1e-4))[0])
        raise ValueError(f"the log-probability of token {at} is {batch.logprobs[at]}; it must be finite and not positive")
    versions = batch.versions[mask]
    if not 0 <= int(versions.min()) <= int(versions.max()) <= version:
        raise ValueError(f"the tokens' versions are in {versions.min()} .. {versions.max()}, and the learner's is {version}")
    return replace(batch, logprobs=logprobs)
