"""One sequence that the engine continues."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from echo_rl.engine.pool import Extent
from echo_rl.engine.radix import Node


@dataclass(eq=False)
class Request:
    """``output``, ``logprobs`` and ``versions`` grow together, one entry per new token, and so does ``likeliest`` if ``top`` is not 0.

    A log-probability is that of the distribution the token was drawn from, after temperature and top_p; at temperature 0 it is the model's own.
    ``finish`` is None while the request lives, then ``"length"``, ``"stop"`` or ``"abort"``.
    """

    number: int
    prompt: tuple[int, ...]
    max_new: int
    temperature: float
    top_p: float
    stop: frozenset[tuple[int, ...]]
    value: float
    arrived: float
    random: Random
    watch: Callable[[int], bool] | None = None
    top: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)
    """The ``top`` likeliest tokens of each draw and their log-probabilities, likeliest first."""
    finish: str | None = None
    cached: int = 0
    waited: float = 0.0
    leaf: Node | None = None
    """The node of the tree that ends the request's known tokens but the last."""
    reserved: list[int] = field(default_factory=list)
    """The blocks that the request may write: from the position ``after`` to that of its last possible token."""
    after: int = 0
    own: list[int] = field(default_factory=list)
    """The blocks that a decode reads for this request alone, from the position ``begin`` on: ``reserved``, and nodes that nobody shares."""
    begin: int = 0
    segments: list[Extent] | None = None
    """Where the tokens before ``begin`` lie, if it is known: to collect this for each request at each step would take much of a step's time."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt and what was made so far."""
        return self.prompt + tuple(self.output)

    @property
    def position(self) -> int:
        """The position of the last known token, whose keys come next."""
        return len(self.prompt) + len(self.output) - 1

    @property
    def room(self) -> int:
        """How many new tokens the request may still make. As many tokens' keys are to come: the last known one's, and all but the last new one's."""
        return self.max_new - len(self.output)

    def stopped(self) -> bool:
        """Whether the newest token completes a stop sequence, or ``watch`` asks to stop. It must be asked once for each token."""
        made = len(self.output)
        complete = any(made >= len(s) and tuple(self.output[made - len(s) :]) == s for s in self.stop)
        # The watcher must see every token, also one that ends the request for another reason.
        asked = self.watch is not None and self.watch(self.output[-1])
        return complete or asked
