"""The samples of benchmarks/transferqueue, which are the same for every system. It needs numpy alone: two environments import it."""

from __future__ import annotations

from typing import Any

import numpy as np

ROLLOUTS, LEAST_TOKENS, MOST_TOKENS = 256, 200, 8000
PICTURES, MOST_PIXELS = 32, 5_200_000
TOKENS = {"tokens": np.int32, "logprobs": np.float32, "mask": np.uint8, "versions": np.int32}  # 13 bytes a token
LEAF = {"tokens": "tokens", "pictures": "pixels"}  # of each case, the leaf that is summed up to see that everything has arrived


def samples(case: str) -> list[dict[str, Any]]:
    """`"tokens"`: 256 rollouts of 200 to 8 000 tokens, evenly distributed. `"pictures"`: 32 of 1 to 14.75 MiB, 252 MiB in all."""
    random = np.random.default_rng(7)
    if case == "tokens":
        lengths = random.integers(LEAST_TOKENS, MOST_TOKENS, ROLLOUTS, endpoint=True)
        return [
            {name: random.integers(0, 2, n).astype(dtype) for name, dtype in TOKENS.items()} | {"reward": np.array(i, np.float32)}
            for i, n in enumerate(lengths)
        ]
    sizes = np.linspace(1 << 20, 14.75 * (1 << 20), PICTURES)
    return [{"pixels": random.integers(0, 256, (int(size) // 3, 3), np.uint8), "label": np.array(i, np.int64)} for i, size in enumerate(sizes)]
