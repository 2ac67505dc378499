"""Replay with a hot and a cold stratum, on a table of Echo with the sampler `hot_cold`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from echo_core import CheckpointError, ReplayTable, Table
from echo_rl.checks import check_fields, one_of, optional, real, whole
from echo_samplers.hot_cold import HotCold
from echo_samplers.scores import TrajectoryScore

Leaves = dict[str, NDArray[Any]]
Keys = NDArray[np.uint64]

_log = logging.getLogger(__name__)
_ROW_BYTES = 160  # what sampler and table keep for each item beside its leaves


@dataclass(frozen=True)
class ReplayConfig:
    """Sizes and rules of a replay buffer.

    Attributes:
        hot_buffer_size: the largest number of hot items.
        cold_buffer_size: how many further items the buffer holds.
        hot_ratio: the share of a batch that is hot, between 0 and 1.
        age_threshold: for how many versions of the policy (see `advance`) an item stays hot; None means no limit.
        age_unit: "versions" or "inserts". With "inserts", `age_threshold` counts the items that were added after this one.
        max_replay_age: items that lag more versions behind `advance` are removed; None keeps them.
        weighting: how scores become chances in a stratum: "rank" is (rank)^-(alpha / temperature), "softmax" is exp(score / temperature),
            and "robust" is exp(clip((score - median) / deviation, -5, 5) / temperature).
        beta: exponent of the weights (N p)^-beta; with 1 the weighted mean of a batch is unbiased.
        reward_weight: weight of |reward| in the score |plan - mean plan|^2 + reward_weight * |reward|.
        plan_decay: decay of the mean plan for each batch that is added.
        max_bytes: the largest number of bytes for the items and their bookkeeping. Sizes that need more are reduced in proportion, and the log says so.
        seed: the seed of the draws. None takes a random seed.
    """

    hot_buffer_size: int = 1_000_000
    cold_buffer_size: int = 10_000_000
    hot_ratio: float = 0.7
    age_threshold: int | None = None
    age_unit: Literal["versions", "inserts"] = "versions"
    max_replay_age: int | None = None
    weighting: Literal["rank", "softmax", "robust"] = "rank"
    alpha: float = 0.6
    temperature: float = 1.0
    beta: float = 1.0
    reward_weight: float = 1.0
    plan_decay: float = 0.99
    max_bytes: int = 1 << 30
    seed: int | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            hot_buffer_size=whole(1),
            cold_buffer_size=whole(1),
            hot_ratio=real(0, 1),
            age_threshold=optional(whole(1)),
            age_unit=one_of("versions", "inserts"),
            max_replay_age=optional(whole(0)),
            weighting=one_of("rank", "softmax", "robust"),
            alpha=real(0),
            temperature=real(above=0),
            beta=real(0, 1),
            reward_weight=real(0),
            plan_decay=real(0, below=1),
            max_bytes=whole(1),
            seed=optional(whole(0)),
        )


class HotColdBuffer:
    """Holds items like `example`, whose leaves are named; a full buffer removes its least valuable item first.

    Raises ConfigError or ValueError if an option of `config` is wrong, and ValueError if `max_bytes` holds fewer than two items.
    """

    def __init__(self, example: Mapping[str, ArrayLike], config: ReplayConfig | None = None) -> None:
        self.config = config = config or ReplayConfig()
        self.example = {name: np.asarray(leaf) for name, leaf in example.items()}
        self.capacity, hot = _sizes(config, sum(leaf.nbytes for leaf in self.example.values()) + _ROW_BYTES)
        sampler: dict[str, Any] = {"type": "hot_cold", "hot_capacity": hot, "hot_ratio": config.hot_ratio, "weighting": config.weighting}
        sampler |= {"alpha": config.alpha / config.temperature} if config.weighting == "rank" else {"temperature": config.temperature}
        if config.age_threshold is not None:
            sampler |= {"age_threshold": config.age_threshold, "age_unit": config.age_unit}
        self.table: ReplayTable = Table(
            "replay",
            self.example,
            capacity=self.capacity,
            sampler=sampler,
            remover="hot_cold",
            seed=config.seed,
            beta=config.beta,
            policy_versions=True,
            max_policy_lag=config.max_replay_age,
        ).open()

    def __len__(self) -> int:
        return len(self.table)

    def add_batch(self, batch: Mapping[str, ArrayLike], scores: ArrayLike | None = None) -> Keys:
        """Adds items, leaves (n, ...), and returns their keys (n,). Without `scores` (n,), each gets the highest score given so far."""
        leaves = {name: np.asarray(leaf) for name, leaf in batch.items()}
        keys = self.table.submit_batch(leaves) if scores is None else self.table.submit_batch(leaves, priorities=np.asarray(scores, np.float64))
        return np.asarray(keys, np.uint64)

    def sample(self, n: int, temperature: float | None = None) -> tuple[Leaves, NDArray[np.float64], Keys]:
        """Draws n items: leaves (n, ...), the weights (N p)^-beta of the exact chances p, and the keys.

        `temperature` replaces that of the configuration for this draw; another one than the last draw's costs O(N). Raises ValueError if the
        buffer is empty, and for another temperature where the weighting is "rank", whose index is built for one.
        """
        if not len(self):
            raise ValueError("the buffer is empty: add experiences before you sample")
        wanted = self.config.temperature if temperature is None else temperature
        if self.config.weighting != "rank":
            sampler = cast(HotCold, self.table.sampler)
            if sampler.temperature != wanted:
                sampler.temperature = wanted
        elif wanted != self.config.temperature:
            raise ValueError(f"temperature={wanted} differs from {self.config.temperature} of the buffer: set it in ReplayConfig, or weight by 'robust'")
        sample = self.table.sample(n)
        if sample is None:
            raise RuntimeError("the buffer is closed")
        weights = (sample.info.store_size * sample.probabilities) ** -self.config.beta
        return dict(sample.batch), np.asarray(weights, np.float64), np.asarray(sample.keys, np.uint64)

    def advance(self, version: int) -> None:
        """Says which version of the policy is current: later items belong to it, and those older than `max_replay_age` are removed."""
        self.table.policy_version = version

    def close(self) -> None:
        self.table.close()


class PrioritizedReplayBuffer:
    """Replays experiences by the score |plan - mean plan|^2 + reward_weight * |reward|.

    An experience is a mapping of names to numbers or arrays; the first one decides names, shapes and dtypes. Those without the leaves
    `plan` and `reward` get their scores from the caller.
    """

    def __init__(self, config: ReplayConfig | None = None) -> None:
        self.config = config or ReplayConfig()
        self.score = TrajectoryScore(self.config.reward_weight, self.config.plan_decay)
        self.buffer: HotColdBuffer | None = None
        self.last_keys: Keys = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return 0 if self.buffer is None else len(self.buffer)

    def add(self, experience: Mapping[str, ArrayLike], score: float | None = None) -> int:
        """Adds one experience and returns its key."""
        batch = {name: np.asarray(leaf)[None] for name, leaf in experience.items()}
        return int(self.add_batch(batch, None if score is None else [score])[0])

    def add_batch(self, experiences: Mapping[str, ArrayLike], scores: ArrayLike | None = None) -> Keys:
        """Adds n experiences, leaves (n, ...), and returns their keys; many at once are much faster than one by one."""
        batch = {name: np.asarray(leaf) for name, leaf in experiences.items()}
        if not batch or not all(leaf.ndim and len(leaf) for leaf in batch.values()):
            raise ValueError("experiences must be a mapping of arrays with at least one row")
        if self.buffer is None:
            self.buffer = HotColdBuffer({name: leaf[0] for name, leaf in batch.items()}, self.config)
        if scores is None and {"plan", "reward"} <= batch.keys():
            scores = self.score(batch["plan"], batch["reward"])
        return self.buffer.add_batch(batch, scores)

    def sample_batch(self, batch_size: int, temperature: float | None = None) -> tuple[Leaves, NDArray[np.float64]]:
        """Draws experiences, leaves (batch_size, ...), and their weights (N p)^-beta; `last_keys` then has their keys.

        `temperature` is that of this draw, see `HotColdBuffer.sample`; None takes the configuration's.
        """
        batch, weights, self.last_keys = self._filled().sample(batch_size, temperature)
        return batch, weights

    def update_priorities(self, keys: ArrayLike, values: ArrayLike) -> int:
        """Gives items new scores, which may move them between the strata; returns how many of the keys are gone."""
        return int(self._filled().table.update_priorities(keys, values))

    def advance(self, version: int) -> None:
        """Says which version of the policy is current; see `HotColdBuffer.advance`."""
        self._filled().advance(version)

    def save(self, path: str | Path) -> None:
        """Writes the buffer into the folder `path`, without pickle."""
        folder, buffer = Path(path), self._filled()
        folder.mkdir(parents=True, exist_ok=True)
        buffer.table.checkpoint(folder / "table")
        leaves = {name: [leaf.dtype.str, leaf.shape] for name, leaf in buffer.example.items()}
        average = None if self.score.average is None else self.score.average.tolist()
        about = {"config": asdict(self.config), "leaves": leaves, "average": average}
        # By a rename, so that an interruption leaves the older file whole.
        (folder / "replay.json.new").write_text(json.dumps(about))
        (folder / "replay.json.new").replace(folder / "replay.json")

    @classmethod
    def load(cls, path: str | Path) -> PrioritizedReplayBuffer:
        """The buffer that `save` wrote. Raises CheckpointError or OSError if it is missing or damaged."""
        file = Path(path) / "replay.json"
        text = file.read_text()
        try:
            about = json.loads(text)
            found = cls(ReplayConfig(**about["config"]))
            example = {name: np.zeros(shape, dtype) for name, (dtype, shape) in about["leaves"].items()}
            average = about["average"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is not a saved replay buffer: {error}") from error
        found.buffer = HotColdBuffer(example, found.config)
        found.buffer.table.restore(Path(path) / "table")
        if average is not None:
            found.score.restore({"average": np.asarray(average, np.float64)})
        return found

    def close(self) -> None:
        """Frees the memory; the buffer can't be used any more."""
        if self.buffer is not None:
            self.buffer.close()

    def _filled(self) -> HotColdBuffer:
        if self.buffer is None:
            raise ValueError("the buffer is empty: add experiences before you use it")
        return self.buffer


def _sizes(config: ReplayConfig, item_bytes: int) -> tuple[int, int]:
    """How many items, and how many of them hot, fit into `max_bytes`."""
    wanted, fits = config.hot_buffer_size + config.cold_buffer_size, config.max_bytes // item_bytes
    if fits < 2:
        raise ValueError(f"max_bytes={config.max_bytes} is too small for two items of {item_bytes} bytes; raise it")
    if wanted <= fits:
        return wanted, config.hot_buffer_size
    hot = min(fits - 1, max(1, fits * config.hot_buffer_size // wanted))
    _log.warning(
        "max_bytes=%d is too small for the capacity of %d (bytes of an item: %d). The capacity is now %d (hot: %d); raise max_bytes for more",
        config.max_bytes, wanted, item_bytes, fits, hot,
    )  # fmt: skip
    return fits, hot
