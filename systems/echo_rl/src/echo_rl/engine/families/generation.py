"""What a model's files say about generation: the tokens that end an answer, limits, and options of sampling."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

_log = logging.getLogger(__name__)

# Options that change which tokens are drawn, each with the value that changes nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (1.0,), "top_k": (0, 50), "top_p": (1.0,), "min_p": (0.0,), "typical_p": (1.0,), "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,),
    "repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,), "no_repeat_ngram_size": (0,), "num_beams": (1,), "num_beam_groups": (1,),
    "diversity_penalty": (0.0,), "length_penalty": (1.0,), "bad_words_ids": (), "force_words_ids": (), "forced_bos_token_id": (),
    "forced_eos_token_id": (), "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "sequence_bias": (), "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,), "watermarking_config": (), "min_length": (0,), "min_new_tokens": (0,), "penalty_alpha": (0.0,), "top_h": (), "stop_strings": (),
    "remove_invalid_values": (False,), "dola_layers": (),
}  # fmt: skip


@dataclass(frozen=True)
class Generation:
    """What a model's files say about generation.

    Attributes:
        ends: The tokens that end an answer (``eos_token_id``).
        most: The largest number of new tokens (``max_new_tokens``), or None.
        unused: Options that would change which tokens are drawn, such as ``repetition_penalty``. Nobody here applies them, since a learner that does not know
            them would compute other log-probabilities.
    """

    ends: tuple[int, ...] = ()
    most: int | None = None
    unused: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it be copied and pickled, which a read-only mapping cannot be."""
        return Generation, (self.ends, self.most, dict(self.unused))

    @classmethod
    def read(cls, folder: Path, vocab: int) -> Generation:
        """Read ``generation_config.json`` and, for what it lacks, ``config.json``. Ends that the model cannot draw are left out.

        Raise ValueError for an end that is no token, and for a limit below 1.
        """
        found: dict[str, Any] = {}
        for name in ("config.json", "generation_config.json"):
            file = folder / name
            if file.exists():
                given = json.loads(file.read_text())
                found |= {key: value for key, value in given.items() if value is not None}
        ends = found.get("eos_token_id", [])
        ends = ends if isinstance(ends, list) else [ends]
        if not all(isinstance(end, int) and not isinstance(end, bool) and end >= 0 for end in ends):
            raise ValueError(f"eos_token_id={ends!r} of {folder} must be tokens")
        most = found.get("max_new_tokens")
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError(f"max_new_tokens={most!r} of {folder} must be a whole number of at least 1")
        unused = {name: found[name] for name, neutral in _NEUTRAL.items() if name in found and found[name] not in neutral}
        return cls(tuple(dict.fromkeys(end for end in ends if end < vocab)), most, MappingProxyType(unused))

    def report(self, who: str) -> None:
        """Log which options of the files are not applied, if there are any."""
        if self.unused:
            words = ", ".join(f"{name}={value!r}" for name, value in self.unused.items())
            _log.warning("%s: its files ask for %s, which is not applied: log-probabilities are those of the model after temperature and top_p", who, words)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a ``generation_config.json``."""
        ends: Any = self.ends[0] if len(self.ends) == 1 else list(self.ends) or None
        return {"eos_token_id": ends, **({} if self.most is None else {"max_new_tokens": self.most}), **self.unused}
