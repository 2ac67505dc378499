"""The products of a forward pass: plain ones for training, and packed ones of weights that stay the same until the next version."""

import torch
import torch.nn.functional as F
from torch import Tensor

_ONEDNN = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
"""Whether this build of torch has oneDNN's packed products, which ``torch.compile`` uses. They take about half the time of a plain product on a CPU."""

_UNARY = {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", ""), "silu": ("swish", "")}


class PlainLinear:
    """``x @ weight.T + bias`` in float32, of ``weight`` (out, in) and ``bias`` (out,) themselves. Gradients flow to both."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    @staticmethod
    def keep(weight: Tensor) -> Tensor:
        """Return the weight that a model holds beside its products, such as an embedding: here the given one itself."""
        return weight

    def dense(self) -> Tensor:
        """Return a copy of the weight (out, in)."""
        return self.weight.clone()

    def __call__(self, x: Tensor, after: str = "none") -> Tensor:
        """Return the product of x (N, in). ``after`` is ``"none"``, ``"gelu"``, ``"gelu_tanh"``, ``"relu"`` or ``"silu"``, and is applied to it."""
        y = F.linear(x, self.weight, self.bias)
        if after in ("gelu", "gelu_tanh"):
            return F.gelu(y, approximate="tanh" if after == "gelu_tanh" else "none")
        return F.silu(y) if after == "silu" else F.relu(y) if after == "relu" else y

    def join(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """Return the product of x with ``other`` (N, out) added to it (``how="add"``) or multiplied by it (``"mul"``)."""
        y = F.linear(x, self.weight, self.bias)
        return y + other if how == "add" else y * other


class Linear(PlainLinear):
    """The same product of an own copy of the weight and the bias, for inference: a trainer may go on changing the originals."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.packed = _ONEDNN and weight.device.type == "cpu"
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None) if self.packed else weight.clone()
        super().__init__(copy, None if bias is None else bias.clone())

    @staticmethod
    def keep(weight: Tensor) -> Tensor:
        """Return a copy of a weight that a model holds beside its products."""
        return weight.clone()

    def dense(self) -> Tensor:
        """Return a copy of the weight (out, in)."""
        return self.weight.to_dense() if self.packed else super().dense()

    def __call__(self, x: Tensor, after: str = "none") -> Tensor:
        """Return the product of x (N, in); see ``PlainLinear``."""
        if not self.packed:
            return super().__call__(x, after)
        name, form = _UNARY[after]
        found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.weight, self.bias, name, [], form)
        return found

    def join(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """Return the product of x with ``other`` (N, out) joined to it; see ``PlainLinear``."""
        if not self.packed:
            return super().join(x, other, how)
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, how)
        return found
