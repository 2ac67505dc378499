"""What the tables hold: a transition of CartPole's size, and an Atari frame with what belongs to it."""

from __future__ import annotations

from benchmarks.payloads import PAYLOADS, Leaf, Payload

ITEMS: dict[str, Payload] = {
    "41B": Payload(
        "41B",
        "41 B",
        (
            Leaf(("obs",), (4,), "float32"),
            Leaf(("action",), (1,), "int32"),
            Leaf(("reward",), (1,), "float32"),
            Leaf(("next_obs",), (4,), "float32"),
            Leaf(("done",), (1,), "uint8"),
        ),
        batch_size=256,
        pool=64,
    ),
    "28KB": PAYLOADS["28KB"],
}
