"""What the tables hold: a transition of CartPole's size, an Atari frame with what belongs to it, and one of the four frames it is made of."""

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
    "7KB": Payload(
        "7KB",
        "7 KB frames",
        (Leaf(("frame",), (84, 84), "uint8"), Leaf(("action",), (), "int32"), Leaf(("reward",), (), "float32")),
        batch_size=64,
        pool=4,
    ),
}
