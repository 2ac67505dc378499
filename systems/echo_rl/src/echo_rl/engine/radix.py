"""A radix tree over token sequences whose nodes own their keys and values."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from echo_rl.engine.model import ModelConfig


class Node:
    """A segment of tokens. ``k`` and ``v`` are (layers, kv_heads, len(tokens), head_dim); the first ``filled`` tokens of them are computed."""

    __slots__ = ("children", "filled", "k", "locks", "parent", "start", "tokens", "used", "v")

    def __init__(self, tokens: tuple[int, ...], parent: "Node | None", start: int, k: Tensor, v: Tensor) -> None:
        self.tokens, self.parent, self.start, self.k, self.v = tokens, parent, start, k, v
        self.children: dict[int, Node] = {}
        self.filled = self.locks = self.used = 0

    def path(self) -> "list[Node]":
        """Return the nodes from below the root to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class RadixIndex:
    """The prefixes that one version of the weights has computed, or is computing. Counters are in tokens."""

    def __init__(self, config: ModelConfig, version: int, device: torch.device) -> None:
        self.config, self.version, self.device = config, version, device
        nothing = torch.empty((config.layers, config.kv_heads, 0, config.head_dim), device=device)
        self.root = Node((), None, 0, nothing, nothing)
        self.tokens = self.evicted = self.clock = self.splits = 0

    def match(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens the tree holds. It changes nothing."""
        return self._walk(tuple(tokens))[1]

    def insert(self, tokens: Sequence[int]) -> tuple[Node, int]:
        """Put ``tokens`` into the tree and return their last node and how many of them were there before."""
        whole = tuple(tokens)
        node, found, inside = self._walk(whole)
        if inside < len(node.tokens):
            node = self._split(node, inside)
        if found < len(whole):
            c, added = self.config, len(whole) - found
            shape = (c.layers, c.kv_heads, added, c.head_dim)
            child = Node(whole[found:], node, found, torch.empty(shape, device=self.device), torch.empty(shape, device=self.device))
            node.children[whole[found]] = child
            self.tokens += added
            node = child
        return node, found

    def lock(self, node: Node, change: int) -> None:
        """Add ``change`` to the locks of a node and its ancestors; locked nodes are not evicted."""
        self.clock += 1
        for each in node.path():
            each.locks += change
            each.used = self.clock

    def drop_unfilled(self, node: Node) -> None:
        """Remove a node, and ancestors likewise, that nobody holds and whose keys were never completed."""
        while node.parent is not None and not node.locks and not node.children and node.filled < len(node.tokens):
            parent = node.parent
            self._remove(node)
            node = parent

    def evict(self, wanted: int) -> int:
        """Free at least ``wanted`` tokens if that many are not locked, least recently used leaves first. Return how many were freed."""
        freed = 0
        while freed < wanted:
            leaf = min((n for n in self.nodes() if not n.locks and not n.children), key=lambda n: n.used, default=None)
            if leaf is None:
                break
            freed += len(leaf.tokens)
            self._remove(leaf)
        self.evicted += freed
        return freed

    def free(self) -> int:
        """Return how many tokens no request holds."""
        return sum(len(n.tokens) for n in self.nodes() if not n.locks)

    def nodes(self) -> Iterator[Node]:
        """Yield every node below the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _walk(self, tokens: tuple[int, ...]) -> tuple[Node, int, int]:
        node, found = self.root, 0
        while found < len(tokens):
            child = node.children.get(tokens[found])
            if child is None:
                break
            length = len(child.tokens)
            if tokens[found : found + length] != child.tokens:
                pairs = zip(child.tokens, tokens[found:], strict=False)
                same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(length, len(tokens) - found))
                return child, found + same, same
            node, found = child, found + length
        return node, found, len(node.tokens)

    def _split(self, node: Node, at: int) -> Node:
        # The lower part stays the same object, so that requests which hold it need no change.
        parent = node.parent
        assert parent is not None
        upper = Node(node.tokens[:at], parent, node.start, node.k[:, :, :at], node.v[:, :, :at])
        upper.filled, upper.locks, upper.used = min(node.filled, at), node.locks, node.used
        parent.children[node.tokens[0]] = upper
        node.tokens, node.parent, node.start = node.tokens[at:], upper, node.start + at
        node.k, node.v, node.filled = node.k[:, :, at:], node.v[:, :, at:], max(0, node.filled - at)
        upper.children[node.tokens[0]] = node
        self.splits += 1
        return upper

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.tokens[0]]
        self.tokens -= len(node.tokens)
