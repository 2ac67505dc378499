"""A radix tree over token sequences whose nodes hold blocks of keys and values (as SGLang's RadixAttention, arXiv 2312.07104)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Protocol

from echo_rl.engine.pool import BlockPool, Extent


class Node:
    """A segment of tokens at the positions from ``start`` on; the first ``filled`` of them are computed.

    ``blocks[0]`` has the position ``start``. It may be the last block of the parent, where the segment goes on inside a block.
    ``locks`` counts the running requests that need the node, and ``used`` is the tree's clock when one last did.
    """

    __slots__ = ("blocks", "children", "extents", "filled", "locks", "number", "parent", "start", "tokens", "used")

    def __init__(self, number: int, tokens: tuple[int, ...], parent: Node | None, start: int, blocks: list[int]) -> None:
        self.number, self.tokens, self.parent, self.start, self.blocks = number, tokens, parent, start, blocks
        self.children: dict[int, Node] = {}
        self.filled = self.locks = self.used = 0
        self.extents: list[Extent] = []

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)

    def path(self) -> list[Node]:
        """Return the nodes from below the root to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class Watcher(Protocol):
    """The listener that is told of every change of the tree's tokens."""

    def added(self, node: Node) -> None:
        """A new leaf is there."""

    def split(self, upper: Node, lower: Node) -> None:
        """``lower`` had the tokens of both."""

    def removed(self, node: Node) -> None:
        """A leaf is gone; it still knows its parent."""


class RadixIndex:
    """The prefixes that one version of the weights has computed, or is computing. Counters are in tokens.

    ``watcher`` is told of each change.
    """

    def __init__(self, pool: BlockPool, version: int = 0, watcher: Watcher | None = None) -> None:
        self.pool, self.version, self.watcher = pool, version, watcher
        self.root = Node(0, (), None, 0, [])
        self.tokens = self.evicted = self.clock = self.splits = self.count = 0
        self._made = 0
        # Leaves that nobody needs, by their last use. An entry whose node has changed since is skipped when it comes up.
        self._leaves: list[tuple[int, int, Node]] = []

    def match(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens the tree holds. It changes nothing."""
        return self.find(tuple(tokens))[1]

    def find(self, tokens: tuple[int, ...]) -> tuple[Node, int, int]:
        """Return the node in which the longest prefix ends that the tree holds, the prefix's length, and how many tokens of the node belong to it."""
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

    def insert(self, tokens: Sequence[int], blocks: Sequence[int] = (), begin: int = 0) -> tuple[Node, int]:
        """Put ``tokens`` into the tree and return their last node and how many of them were there before.

        A new node holds ``blocks``, of which the first has the position ``begin``, and counts as computed. Without them it takes free blocks.
        Raise MemoryError if too few are free.
        """
        whole = tuple(tokens)
        node, found, inside = self.find(whole)
        if inside < len(node.tokens):
            node = self._split(node, inside)
        if found == len(whole):
            return node, found
        pool, end, own = self.pool, len(whole), list(blocks)
        if own:
            first = found // pool.size - begin // pool.size
            own = own[first : first + pool.span(found, end)]
        else:
            shared = node.blocks[-1:] if node.blocks and pool.may_extend(node.blocks[-1], found) else []
            own = shared + pool.take(pool.span(found, end) - len(shared), node.blocks[-1] if node.blocks else -1)
        self._made += 1
        child = Node(self._made, whole[found:], node, found, own)
        child.extents = pool.extents(own, found, end)
        child.filled = len(child.tokens) if blocks else 0
        pool.hold(own)
        for block in own:
            pool.frontier[block] = pool.size
        pool.frontier[own[-1]] = (end - 1) % pool.size + 1
        node.children[whole[found]] = child
        self.tokens += len(child.tokens)
        self.count += 1
        self._offer(child)
        if self.watcher is not None:
            self.watcher.added(child)
        return child, found

    def lock(self, node: Node, change: int) -> None:
        """Add ``change`` to the locks of a node and its ancestors; locked nodes are not evicted."""
        self.clock += 1
        for each in node.path():
            before, each.locks, each.used = each.locks, each.locks + change, self.clock
            if not before:
                self.pool.use(each.blocks)
            elif not each.locks:
                self.pool.unuse(each.blocks)
                self._offer(each)

    def drop_unfilled(self, node: Node) -> None:
        """Remove a node, and ancestors likewise, that nobody holds and whose keys were never completed."""
        while node.parent is not None and not node.locks and not node.children and node.filled < len(node.tokens):
            parent = node.parent
            self._remove(node)
            node = parent

    def evict(self, wanted: int) -> int:
        """Free at least ``wanted`` blocks if that many are not needed, least recently used leaves first. Return how many were freed."""
        before = self.pool.free
        while self.pool.free - before < wanted and self._leaves:
            used, _, leaf = heapq.heappop(self._leaves)
            if leaf.parent is not None and not leaf.locks and not leaf.children and leaf.used == used:
                self.evicted += len(leaf.tokens)
                self._remove(leaf)
        return self.pool.free - before

    def clear(self, version: int) -> None:
        """Forget everything; the next keys are those of ``version``. Nothing may be locked."""
        self._leaves = []
        nodes = list(self.nodes())
        for node in reversed(nodes):
            self._remove(node)
        self._leaves, self.version = [], version

    def nodes(self) -> Iterator[Node]:
        """Yield every node below the root, a parent before its children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _split(self, node: Node, at: int) -> Node:
        # The lower part stays the same object, so that requests which hold it need no change.
        parent, pool, position = node.parent, self.pool, node.start + at
        assert parent is not None
        blocks, index = node.blocks, position // pool.size - node.start // pool.size
        self._made += 1
        upper = Node(self._made, node.tokens[:at], parent, node.start, blocks[: pool.span(node.start, position)])
        upper.filled, upper.locks, upper.used = min(node.filled, at), node.locks, node.used
        parent.children[node.tokens[0]] = upper
        node.tokens, node.parent, node.start, node.blocks = node.tokens[at:], upper, position, blocks[index:]
        node.filled = max(0, node.filled - at)
        upper.children[node.tokens[0]] = node
        for part in (upper, node):
            part.extents = pool.extents(part.blocks, part.start, part.end)
        # A block in which the split lies has two holders now.
        both = blocks[index : len(upper.blocks)]
        pool.hold(both)
        if node.locks:
            pool.use(both)
        self.splits += 1
        self.count += 1
        if self.watcher is not None:
            self.watcher.split(upper, node)
        return upper

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens[0]]
        self.tokens -= len(node.tokens)
        self.count -= 1
        if self.watcher is not None:
            self.watcher.removed(node)
        if parent.blocks and parent.blocks[-1] == node.blocks[0]:
            self.pool.frontier[node.blocks[0]] = node.start % self.pool.size
        self.pool.drop(node.blocks)
        node.parent = None
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        if node.parent is None or node.locks or node.children:
            return
        heapq.heappush(self._leaves, (node.used, node.number, node))
        if len(self._leaves) > 2 * self.count + 64:
            self._leaves = [(n.used, n.number, n) for n in self.nodes() if not n.locks and not n.children]
            heapq.heapify(self._leaves)
