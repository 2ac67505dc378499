"""Products with weights that stay the same until the next version, so they are packed once."""

import torch
import torch.nn.functional as F
from torch import Tensor

_ONEDNN = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
"""Whether this build of torch has oneDNN's packed products, which ``torch.compile`` uses. They take about half the time of a plain product on a CPU."""

_UNARY = {"none": ("none", ""), "gelu": ("gelu", "tanh"), "silu": ("swish", "")}


class Linear:
    """``x @ weight.T + bias`` in float32, of an own copy of ``weight`` (out, in) and ``bias`` (out,): a trainer may go on changing the originals."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.packed = _ONEDNN and weight.device.type == "cpu"
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None) if self.packed else weight.clone()
        self.bias = None if bias is None else bias.clone()

    def __call__(self, x: Tensor, after: str = "none") -> Tensor:
        """Return the product of x (N, in). ``after`` is ``"none"``, ``"gelu"`` (the form with tanh) or ``"silu"``, and is applied to it."""
        if self.packed:
            name, form = _UNARY[after]
            found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.weight, self.bias, name, [], form)
            return found
        y = F.linear(x, self.weight, self.bias)
        return F.gelu(y, approximate="tanh") if after == "gelu" else F.silu(y) if after == "silu" else y

    def join(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """Return the product of x with ``other`` (N, out) added to it (``how="add"``) or multiplied by it (``"mul"``)."""
        if self.packed:
            found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, how)
            return found
        y = F.linear(x, self.weight, self.bias)
        return y + other if how == "add" else y * other
