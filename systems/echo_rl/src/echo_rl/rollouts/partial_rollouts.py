"""A group of rollouts that is not finished, on its way from the actor that leaves to the one that goes on with it.

The prefix of a ticket is the record of its group, as a file of arrays without pickle. A rollout that is not over has the finish reason ``"abort"``. Its
environment is not in the record: the actor that goes on lets an environment take the recorded actions again.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from echo_core import SpecError
from echo_rl.rollouts.records import pack
from echo_rl.rollouts.schema import FINISH_REASONS, RolloutSchema
from echo_rl.rollouts.text_episodes import Episode

__all__ = ["episodes_of", "read_prefix", "write_prefix"]


def write_prefix(record: Mapping[str, Any]) -> bytes:
    """A record of a group as bytes."""
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(leaf) for name, leaf in record.items()})  # type: ignore[arg-type]
    return file.getvalue()


def read_prefix(prefix: bytes) -> dict[str, Any]:
    """The record of ``write_prefix``. Raises SpecError if the bytes are no such record."""
    try:
        with np.load(io.BytesIO(prefix), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise SpecError(f"the prefix of a ticket cannot be read: {error}") from error


def episodes_of(record: Mapping[str, Any], schema: RolloutSchema) -> list[Episode]:
    """The episodes of a group, without environments. Raises SpecError if the record is not of this schema."""
    if missing := schema.example().keys() - record.keys():
        raise SpecError(f"the prefix of a ticket has no leaf {min(missing)!r}")
    batch = schema.unpack(pack([record], schema.example()))
    episodes = []
    for i in range(len(batch)):
        own, turns = slice(*batch.cu_seqlens[i : i + 2]), batch.turns[slice(*batch.turn_cu_seqlens[i : i + 2])].tolist()
        steps, success, finish = int(record["steps"][i]), int(record["success"][i]), FINISH_REASONS[batch.finish[i]]
        episode = Episode(int(record["task"]), int(batch.attempts[i]), prompt=batch.prompts.tolist(), turns=turns)
        for name in ("tokens", "logprobs", "versions", "mask"):
            setattr(episode, name, getattr(batch, name)[own].tolist())
        episode.rewards = [float(batch.rewards[i]), *[0.0] * (steps - 1)][:steps]  # the record has their sum
        episode.finish = "" if finish == "abort" else finish
        # An action without a reward is not complete.
        episode.open = len(episode.tokens) - turns[-1] if not episode.finish and steps < len(turns) else 0
        episode.success = None if success == 2 else bool(success)
        if finish == "error":
            episode.fault = bytes(record["fault"]).decode(errors="replace") or "its environment has failed"
        episodes.append(episode)
    return episodes
