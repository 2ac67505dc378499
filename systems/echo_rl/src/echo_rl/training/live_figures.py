"""Figures of a run while it runs: for ``echoctl top`` and Prometheus through the server's statistics, for a file, and for TensorBoard if it is installed."""

from __future__ import annotations

import importlib
import json
import time
from collections import deque
from pathlib import Path
from typing import Any

from echo_rl.training.metrics import TrainingMetrics

__all__ = ["LiveFigures"]

_WINDOW = 10.0  # seconds over which rates are taken


class LiveFigures:
    """The newest figures of a run.

    Args:
        folder: where ``metrics.jsonl`` gets a line for each update and each evaluation, and TensorBoard its files; None writes nothing.
        metrics: of the run.

    Attributes:
        waiting: for what the learner waits, in words, or "" while it trains.
    """

    def __init__(self, folder: str | None, metrics: TrainingMetrics) -> None:
        self._metrics, self._last, self._evaluated = metrics, dict[str, Any](), dict[str, float]()
        self._rates: deque[tuple[float, int, int]] = deque([(time.monotonic(), metrics.steps, metrics.tokens)])
        self.waiting = ""
        self._file: Any = None
        self._board: Any = None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = open(Path(folder) / "metrics.jsonl", "a")  # noqa: SIM115  (close() closes it)
            try:
                self._board = importlib.import_module("torch.utils.tensorboard").SummaryWriter(folder, flush_secs=10)
            except ImportError:
                self._board = None  # TensorBoard is optional

    def update(self, figures: dict[str, Any]) -> None:
        """Take the figures of an update."""
        self._last = figures
        now = time.monotonic()
        self._rates.append((now, self._metrics.steps, self._metrics.tokens))
        while len(self._rates) > 2 and now - self._rates[1][0] > _WINDOW:
            self._rates.popleft()
        self._write("update", figures, self._metrics.steps)

    def evaluated(self, results: dict[str, float]) -> None:
        """Take the results of an evaluation."""
        self._evaluated = results
        self._write("evaluation", results, self._metrics.steps)

    def stats(self) -> dict[str, float | int | str]:
        """The figures that ``Server.add_stats`` shows as ``rl/...``. Called on any thread."""
        metrics, last, rates = self._metrics, self._last, list(self._rates)
        (before, steps, tokens), (now, steps_now, tokens_now) = rates[0], rates[-1]
        seconds = max(now - before, 1e-9)
        found: dict[str, float | int | str] = {
            name: last[name] for name in ("reward", "success_rate", "loss", "kl", "entropy", "clip_share", "gradient_norm") if name in last
        }
        found |= {f"evaluation_{name}": self._evaluated[name] for name in ("avg_reward", "success_rate") if name in self._evaluated}
        found |= {
            "updates_total": metrics.updates,
            "steps_total": metrics.steps,
            "episodes_total": metrics.episodes,
            "tokens_total": metrics.tokens,
            "failed_total": metrics.failed,
            "skipped_groups_total": metrics.skipped_groups,
            "handed_back_total": metrics.handed_back,
            "begun_anew_total": metrics.anew,
            "steps_per_s": (steps_now - steps) / seconds,
            "tokens_per_s": (tokens_now - tokens) / seconds,
            "hit_rate": metrics.hit_rate,
            "learner_waits_share": metrics.waited,
            "actors_restarted": metrics.restarted,
        }
        found |= {f"lag_{age}_total": count for age, count in sorted(dict(metrics.lags).items())}
        return {**found, "waits": self.waiting or "the learner trains; actors go on as far as their tickets allow"}

    def close(self) -> None:
        """Close the files."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()

    def _write(self, kind: str, figures: dict[str, Any], step: int) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"kind": kind, **figures}) + "\n")
            self._file.flush()
        if self._board is not None:
            for name, value in figures.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)
