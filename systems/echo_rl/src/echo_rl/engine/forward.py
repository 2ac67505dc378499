"""One pass of the model over a step's decodes and prompt chunks together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from echo_rl.engine.cascade import Cascade
from echo_rl.engine.model import Model
from echo_rl.engine.pool import BlockPool
from echo_rl.engine.radix import Node
from echo_rl.engine.request import Request


def decode_and_prefill(model: Model, pool: BlockPool, running: Sequence[Request], chunks: Sequence[tuple[Node, int, int]]) -> Tensor:
    """Compute the last token of each running request, and tokens ``first .. last`` of each chunk's node.

    Keys and values go into the blocks of the requests and the nodes. Return the hidden states (len(running), width) of the decodes.
    """
    tokens = [r.output[-1] if r.output else r.prompt[-1] for r in running]
    positions = [r.position for r in running]
    for node, first, last in chunks:
        tokens += node.tokens[first:last]
        positions += range(node.start + first, node.start + last)
    with torch.inference_mode():
        inputs = torch.tensor([tokens, positions], device=model.device)
        return model.hidden(inputs[0], inputs[1], Cascade(pool, running, chunks))[: len(running)]
