"""The products of a forward pass: plain ones for training, and packed ones of weights that stay the same until the next version."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_ONEDNN = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
"""Whether this build of torch has oneDNN's packed products, which ``torch.compile`` uses. They take about half the time of a plain product on a CPU."""

_UNARY = {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", ""), "silu": ("swish", "")}


class PlainLinear:
    """``x @ weight.T + bias`` in float32, of weights (out, in) and biases (out,) themselves. Gradients flow to them, and changes in place are seen.

    Several weights stand for one whose outputs are theirs side by side.
    """

    def __init__(self, *weights: Tensor, biases: Sequence[Tensor] = ()) -> None:
        self._weights, self._biases = weights, biases or (None,) * len(weights)

    @staticmethod
    def keep(weight: Tensor) -> Tensor:
        """Return the weight that a model holds beside its products, such as an embedding: here the given one itself."""
        return weight

    def dense(self) -> Tensor:
        """Return a copy of the weight (out, in)."""
        return torch.cat([weight.detach() for weight in self._weights])

    def bias(self) -> Tensor | None:
        """Return a copy of the bias (out,), if there is one."""
        given = [bias.detach() for bias in self._biases if bias is not None]
        return torch.cat(given) if given else None

    def __call__(self, x: Tensor, after: str = "none") -> Tensor:
        """Return the product of x (N, in). ``after`` is ``"none"``, ``"gelu"``, ``"gelu_tanh"``, ``"relu"`` or ``"silu"``, and is applied to it."""
        parts = [F.linear(x, weight, bias) for weight, bias in zip(self._weights, self._biases, strict=True)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if after in ("gelu", "gelu_tanh"):
            return F.gelu(y, approximate="tanh" if after == "gelu_tanh" else "none")
        return F.silu(y) if after == "silu" else F.relu(y) if after == "relu" else y

    def join(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """Return the product of x with ``other`` (N, out) added to it (``how="add"``) or multiplied by it (``"mul"``)."""
        y = PlainLinear.__call__(self, x)
        return y + other if how == "add" else y * other


class Linear(PlainLinear):
    """The same product of an own copy of the weights and the biases, for inference: a trainer may go on changing the originals."""

    def __init__(self, *weights: Tensor, biases: Sequence[Tensor] = ()) -> None:
        weight, bias = torch.cat(weights).contiguous(), torch.cat(list(biases)) if biases else None
        self.packed = _ONEDNN and weight.device.type == "cpu"
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self.packed else weight
        self._bias = bias
        super().__init__(self._packed, biases=() if bias is None else (bias,))

    @staticmethod
    def keep(weight: Tensor) -> Tensor:
        """Return a copy of a weight that a model holds beside its products."""
        return weight.clone()

    def dense(self) -> Tensor:
        """Return a copy of the weight (out, in)."""
        return self._packed.to_dense() if self.packed else super().dense()

    def __call__(self, x: Tensor, after: str = "none") -> Tensor:
        """Return the product of x (N, in); see ``PlainLinear``."""
        if not self.packed:
            return super().__call__(x, after)
        name, form = _UNARY[after]
        found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._packed, self._bias, name, [], form)
        return found

    def join(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """Return the product of x with ``other`` (N, out) joined to it; see ``PlainLinear``."""
        if not self.packed:
            return super().join(x, other, how)
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, self._bias, how)
        return found
