"""Attention of one step's tokens over the tree's segments, read once for all the rows that share them, and over keys of their own.

The scores against every segment lie side by side, so one softmax joins them; the result is that of plain attention over the whole sequence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from echo_rl.engine.radix import Node
from echo_rl.engine.request import Request
from echo_rl.engine.slab import Slab

Run = tuple[Node, int, int, int]
"""Rows ``begin .. end`` attend over the first ``length`` tokens of a node: (node, length, begin, end)."""


class Shared:
    """The rows' attention over nodes of the tree. ``blocks`` has, for each run of equal rows, their number and their nodes with how much of each they see.

    The scores against a node lie in the columns of its tokens' positions.
    """

    def __init__(self, blocks: Sequence[tuple[int, list[tuple[Node, int]]]]) -> None:
        latest: dict[tuple[Node, int], int] = {}
        self.runs: list[Run] = []
        self.rows = self.width = 0
        for count, segments in blocks:
            end = self.rows + count
            for key in segments:
                at = latest.get(key)
                if at is not None and self.runs[at][3] == self.rows:
                    self.runs[at] = (*key, self.runs[at][2], end)
                else:
                    latest[key] = len(self.runs)
                    self.runs.append((*key, self.rows, end))
                self.width = max(self.width, key[0].start + key[1])
            self.rows = end
        self.whole = all(begin == 0 and end == self.rows for _, _, begin, end in self.runs)

    def score(self, layer: int, q: Tensor, scores: Tensor) -> None:
        """Fill the first ``width`` columns of ``scores`` (kv_heads, rows * group, columns) with the products of q (kv_heads, rows * group, D)."""
        if not self.whole:
            scores[:, :, : self.width] = float("-inf")
        group = q.shape[1] // self.rows
        for node, length, begin, end in self.runs:
            a, b, first = begin * group, end * group, node.start
            torch.bmm(q[:, a:b], node.k[layer, :, :length].transpose(1, 2), out=scores[:, a:b, first : first + length])

    def collect(self, layer: int, weights: Tensor) -> Tensor | None:
        """Return the sums (kv_heads, rows * group, D) of the values, weighted by the columns of the nodes; None if there is no node."""
        group, out = weights.shape[1] // self.rows, None
        for node, length, begin, end in self.runs:
            a, b, first = begin * group, end * group, node.start
            part, v = weights[:, a:b, first : first + length], node.v[layer, :, :length]
            if out is None and self.whole:
                out = torch.bmm(part, v)
            else:
                if out is None:
                    out = weights.new_zeros((*weights.shape[:2], v.shape[2]))
                out[:, a:b].baddbmm_(part, v)
        return out


class Cascade:
    """Attention of a step: rows that decode, in the order of their slots, then the rows of prompt chunks (node, first, last).

    It writes each row's key and value where later steps look for them.
    """

    def __init__(self, slab: Slab, running: Sequence[Request], chunks: Sequence[tuple[Node, int, int]]) -> None:
        self.slab, self.chunks, self.count = slab, chunks, len(running)
        device = slab.k.device
        if running:
            paths = [_segments(r) for r in running]
            # Rows with the same nodes come side by side, so that each node is read once.
            order = sorted(range(self.count), key=lambda i: [id(node) for node, _ in paths[i]])
            self.decodes = Shared([(1, paths[i]) for i in order])
            sorted_already = order == list(range(self.count)) or self.decodes.whole
            self.order = None if sorted_already else torch.tensor(order, device=device)
            self.inverse = None if self.order is None else self.order.argsort()
            lengths = torch.tensor([r.length for r in running], device=device)
            self.longest = max(r.length for r in running) + 1
            late = torch.arange(self.longest, device=device) > lengths[:, None]
            self.late = torch.zeros((self.count, 1, 1, self.longest), device=device).masked_fill_(late[:, None, None], float("-inf"))
            self.places = slab.places(lengths)
        if chunks:
            sizes = [last - first for _, first, last in chunks]
            self.prefills = Shared([(size, _above(node, first)) for size, (node, first, _) in zip(sizes, chunks, strict=True)])
            # A row sees itself and the earlier rows of its own chunk.
            owner = torch.repeat_interleave(torch.arange(len(chunks)), torch.tensor(sizes)).to(device)
            hidden = (owner[:, None] != owner).logical_or_(torch.ones(len(owner), len(owner), dtype=torch.bool, device=device).triu_(1))
            self.causal = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return (N, heads, D) for q (N, heads, D) and the rows' own k and v (N, kv_heads, D)."""
        q, n = q * q.shape[-1] ** -0.5, self.count
        if not self.chunks:
            return self._decode(layer, q, k, v)
        if not n:
            return self._prefill(layer, q, k, v)
        return torch.cat([self._decode(layer, q[:n], k[:n], v[:n]), self._prefill(layer, q[n:], k[n:], v[n:])])

    def _decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (count, heads, dim), kv_heads, width, tree = q.shape, k.shape[1], self.decodes.width, self.decodes
        group = heads // kv_heads
        self.slab.write(layer, self.places, k, v)
        keys, values = self.slab.k[layer, :count, :, : self.longest], self.slab.v[layer, :count, :, : self.longest]
        own = torch.matmul(q.view(count, kv_heads, group, dim), keys.transpose(2, 3))
        own += self.late
        scores = torch.empty((kv_heads, count * group, width + self.longest), device=q.device)
        tree.score(layer, _by_head(q if self.order is None else q[self.order], kv_heads), scores)
        table = scores.view(kv_heads, count, group, -1)
        table[..., width:] = (own if self.order is None else own[self.order]).transpose(0, 1)
        weights = scores.softmax(-1)
        mine = weights.view(kv_heads, count, group, -1)[..., width:].transpose(0, 1)
        out = torch.matmul(mine if self.inverse is None else mine[self.inverse], values)
        below = tree.collect(layer, weights)
        if below is not None:
            shared = below.view(kv_heads, count, group, dim).transpose(0, 1)
            out = out + (shared if self.inverse is None else shared[self.inverse])
        return out.reshape(count, heads, dim)

    def _prefill(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (rows, heads, dim), kv_heads, width = q.shape, k.shape[1], self.prefills.width
        group, at = heads // kv_heads, 0
        for node, first, last in self.chunks:
            node.k[layer, :, first:last] = k[at : at + last - first].transpose(0, 1)
            node.v[layer, :, first:last] = v[at : at + last - first].transpose(0, 1)
            at += last - first
        queries = _by_head(q, kv_heads)
        scores = torch.empty((kv_heads, rows * group, width + rows), device=q.device)
        self.prefills.score(layer, queries, scores)
        fresh = torch.bmm(queries, k.permute(1, 2, 0)).view(kv_heads, rows, group, rows)
        torch.add(fresh, self.causal[:, None], out=scores.view(kv_heads, rows, group, -1)[..., width:])
        weights = scores.softmax(-1)
        out = torch.bmm(weights[:, :, width:], v.transpose(0, 1))
        below = self.prefills.collect(layer, weights)
        if below is not None:
            out += below
        return out.view(kv_heads, rows, group, dim).transpose(0, 1).reshape(rows, heads, dim)


def _by_head(q: Tensor, kv_heads: int) -> Tensor:
    rows, heads, dim = q.shape
    return q.view(rows, kv_heads, heads // kv_heads, dim).transpose(0, 1).reshape(kv_heads, -1, dim)


def _segments(request: Request) -> list[tuple[Node, int]]:
    assert request.leaf is not None
    below = len(request.prompt) + len(request.output) - 1 - request.length
    # The request's row of the slab holds the tokens of the others.
    return [(node, len(node.tokens)) for node in request.leaf.path() if node.start < below]


def _above(node: Node, first: int) -> list[tuple[Node, int]]:
    above = [(n, len(n.tokens)) for n in node.path()[:-1]]
    return [*above, (node, first)] if first else above
