"""Attention of one step's tokens over the tree's segments, read once for all the rows that share them, and over keys of their own.

The scores against every segment lie side by side, so one softmax joins them; the result is that of plain attention over the whole sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from echo_rl.engine.pool import BlockPool, Extent
from echo_rl.engine.radix import Node
from echo_rl.engine.request import Request

WINDOW = 64
"""Of a request's own tokens, the blocks of the last 64 to 127 are gathered, and one product serves all rows. Earlier ones are read where they lie."""


TOGETHER = 64
"""Chunks of at most this many tokens are padded to the longest and computed in one product."""


class Shared:
    """The rows' attention over extents of the pool. ``groups`` has, for each run of equal rows, their number and the extents that they see.

    The scores against a token lie in the column of its position.
    """

    def __init__(self, pool: BlockPool, groups: Sequence[tuple[int, list[Extent]]]) -> None:
        self.pool = pool
        latest: dict[Extent, int] = {}
        # Rows begin .. end see an extent: (place, position, length, begin, end).
        self.runs: list[tuple[int, int, int, int, int]] = []
        self.rows = self.width = 0
        for count, extents in groups:
            end = self.rows + count
            for extent in extents:
                at = latest.get(extent)
                if at is not None and self.runs[at][4] == self.rows:
                    self.runs[at] = (*extent, self.runs[at][3], end)
                else:
                    latest[extent] = len(self.runs)
                    self.runs.append((*extent, self.rows, end))
                self.width = max(self.width, extent[1] + extent[2])
            self.rows = end
        self.whole = all(begin == 0 and end == self.rows for *_, begin, end in self.runs) and sum(run[2] for run in self.runs) == self.width

    def score(self, layer: int, q: Tensor, scores: Tensor) -> None:
        """Fill the first ``width`` columns of ``scores`` (kv_heads, rows * group, columns) with the products of q (kv_heads, rows * group, D)."""
        if not self.whole:
            scores[:, :, : self.width] = float("-inf")
        group, keys = q.shape[1] // self.rows, self.pool.k[layer].transpose(1, 2)
        for place, first, length, begin, end in self.runs:
            a, b = begin * group, end * group
            torch.bmm(q[:, a:b], keys[:, :, place : place + length], out=scores[:, a:b, first : first + length])

    def collect(self, layer: int, weights: Tensor, out: Tensor) -> None:
        """Add the values, weighted by the columns of the extents, to ``out`` (kv_heads, rows * group, D)."""
        group, values = weights.shape[1] // self.rows, self.pool.v[layer]
        for place, first, length, begin, end in self.runs:
            a, b = begin * group, end * group
            out[:, a:b].baddbmm_(weights[:, a:b, first : first + length], values[:, place : place + length])


class Prefill:
    """Attention of the rows of prompt chunks (node, first, last): over what stands before each chunk, and over the chunk's own earlier rows."""

    def __init__(self, pool: BlockPool, chunks: Sequence[tuple[Node, int, int]]) -> None:
        device, sizes = pool.k.device, [last - first for _, first, last in chunks]
        self.chunks, self.rows, self.longest = chunks, sum(sizes), max(sizes)
        self.before = Shared(pool, [(size, _above(pool, node, first)) for size, (node, first, _) in zip(sizes, chunks, strict=True)])
        # Chunks of different sizes are padded: row i of the step is row ``place[i]`` of a table, and ``back`` leads from there to i.
        self.even = min(sizes) == self.longest
        self.place = torch.tensor([i * self.longest + j for i, size in enumerate(sizes) for j in range(size)], device=device)
        self.back = torch.zeros(len(chunks) * self.longest, dtype=torch.int64, device=device)
        self.back[self.place] = torch.arange(self.rows, device=device)
        self.causal = torch.full((self.longest, self.longest), float("-inf"), device=device).triu_(1)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return (kv_heads, rows, group, D) for q of that shape and the rows' own k and v (rows, kv_heads, D)."""
        (kv_heads, rows, group, dim), width, n = q.shape, self.before.width, len(self.chunks)
        flat = q.reshape(kv_heads, rows * group, dim)
        if layer == 0:  # As in a decode, one table serves all layers.
            self.scores = torch.empty((kv_heads, rows, group, width + self.longest), device=q.device)
        scores = self.scores
        self.before.score(layer, flat, scores.view(kv_heads, rows * group, -1))
        keys, values = (self._pad(x.transpose(0, 1)).reshape(kv_heads * n, self.longest, dim) for x in (k, v))
        queries = self._pad(q).reshape(kv_heads * n, self.longest * group, dim)
        fresh = torch.bmm(queries, keys.transpose(1, 2)).view(kv_heads * n, self.longest, group, self.longest).add_(self.causal[:, None])
        scores[..., width:] = self._unpad(fresh.view(kv_heads, -1, group, self.longest))
        weights = torch.softmax(scores, -1, out=scores)
        own = self._pad(weights[:, :, :, width:]).reshape(kv_heads * n, self.longest * group, self.longest)
        out = self._unpad(torch.bmm(own, values).view(kv_heads, -1, group, dim))
        self.before.collect(layer, weights.view(kv_heads, rows * group, -1), out.view(kv_heads, rows * group, dim))
        return out

    def _pad(self, x: Tensor) -> Tensor:
        return x if self.even else x[:, self.back]

    def _unpad(self, x: Tensor) -> Tensor:
        return x if self.even else x[:, self.place]


class Cascade:
    """Attention of a step: rows that decode, then the rows of prompt chunks (node, first, last).

    It writes each row's key and value where later steps look for them. Requests with the same prefix should come side by side, so that each
    segment is read once.
    """

    def __init__(self, pool: BlockPool, running: Sequence[Request], chunks: Sequence[tuple[Node, int, int]]) -> None:
        self.pool, self.count = pool, len(running)
        device = pool.k.device
        places: list[int] = []
        if running:
            tables, firsts, groups = [], [], []
            for r in running:
                # Whole windows are left where they lie, so that the extents of earlier tokens stay the same for many steps.
                begin = max(r.begin, (r.position // WINDOW - 1) * WINDOW) if r.position - r.begin >= 2 * WINDOW else r.begin
                skipped = begin // pool.size - r.begin // pool.size
                groups.append((1, _segments(r) + pool.extents(r.own, r.begin, begin)))
                tables.append(r.own[skipped : r.position // pool.size - r.begin // pool.size + 1])
                firsts.append(begin % pool.size)
                places.append(tables[-1][-1] * pool.size + r.position % pool.size)
            self.decodes = Shared(pool, groups)
            longest = max(len(table) for table in tables)
            self.table = torch.tensor([table + table[:1] * (longest - len(table)) for table in tables], device=device)
            column = torch.arange(longest * pool.size, device=device)
            bounds = torch.tensor([[first, (len(t) - 1) * pool.size + r.position % pool.size] for first, t, r in zip(firsts, tables, running, strict=True)])
            low, high = bounds.to(device).unbind(1)
            # Neither what stands before the first own token in its block, nor what comes after the new one.
            hidden = (column < low[:, None]) | (column > high[:, None])
            self.hidden = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))[None, :, None]
        # Long chunks are computed one by one, and short ones together: their tokens would hardly see each other.
        short = [c for c in chunks if c[2] - c[1] <= TOGETHER]
        self.prefills = [Prefill(pool, group) for group in [[c] for c in chunks if c[2] - c[1] > TOGETHER] + ([short] if short else [])]
        for prefill in self.prefills:
            for node, first, last in prefill.chunks:
                places += pool.places(node.blocks, node.start, node.start + last)[first:]
        self.rows = pool.rows(places)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return (N, heads, D) for q (N, heads, D) and the rows' own k and v (N, kv_heads, D)."""
        self.pool.write(layer, self.rows, k, v)
        (rows, heads, dim), kv_heads, n = q.shape, k.shape[1], self.count
        by_head = (q * dim**-0.5).view(rows, kv_heads, heads // kv_heads, dim).transpose(0, 1)
        parts = []
        if n:
            parts.append(self._decode(layer, by_head[:, :n]))
        for prefill in self.prefills:
            last = n + prefill.rows
            parts.append(prefill(layer, by_head[:, n:last], k[n:last], v[n:last]))
            n = last
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return out.transpose(0, 1).reshape(rows, heads, dim)

    def _decode(self, layer: int, q: Tensor) -> Tensor:
        (kv_heads, rows, group, dim), width = q.shape, self.decodes.width
        keys, values = self.pool.gather(layer, self.table)
        if layer == 0:  # One table serves all layers of the step, and its softmax stands in the same memory.
            self.scores = torch.empty((kv_heads, rows, group, width + keys.shape[2]), device=q.device)
        scores = self.scores
        self.decodes.score(layer, q.reshape(kv_heads, -1, dim), scores.view(kv_heads, rows * group, -1))
        torch.add(torch.matmul(q, keys.transpose(2, 3)), self.hidden, out=scores[..., width:])
        weights = torch.softmax(scores, -1, out=scores)
        out = torch.matmul(weights[..., width:], values)
        self.decodes.collect(layer, weights.view(kv_heads, rows * group, -1), out.view(kv_heads, rows * group, dim))
        return out


def _segments(request: Request) -> list[Extent]:
    if request.segments is None:
        assert request.leaf is not None
        request.segments = [extent for node in request.leaf.path() if node.start < request.begin for extent in node.extents]
    return request.segments


def _above(pool: BlockPool, node: Node, first: int) -> list[Extent]:
    above = [extent for n in node.path()[:-1] for extent in n.extents]
    return above + pool.extents(node.blocks, node.start, node.start + first)
