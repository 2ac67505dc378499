"""What a model asks of the one who keeps keys and values."""

from collections.abc import Callable

from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q, k, v)``: q is (N, heads, head_dim); k and v are (N, kv_heads, head_dim); the answer has q's shape. It divides scores by the root of
head_dim."""
