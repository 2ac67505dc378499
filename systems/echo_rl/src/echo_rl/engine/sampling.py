"""Drawing the next token of each request."""

from collections.abc import Sequence

import torch
from torch import Tensor

from echo_rl.engine.request import Request

Likeliest = list[tuple[int, float]]


def draw(logits: Tensor, requests: Sequence[Request]) -> tuple[list[int], list[float], list[Likeliest]]:
    """Draw from (N, vocab) scores with each request's own temperature, top_p and random numbers, so a draw does not depend on the batch.

    Return the tokens, their log-probabilities under the distribution they were drawn from (at temperature 0: the model's own), and under the same
    distribution each request's ``top`` likeliest tokens.
    """
    device = logits.device
    greedy = torch.tensor([r.temperature == 0 for r in requests], device=device)
    divisor = torch.tensor([r.temperature or 1.0 for r in requests], device=device)
    logprobs = (logits / divisor[:, None]).log_softmax(-1)
    if any(r.top_p < 1 and r.temperature for r in requests):
        logprobs = _nucleus(logprobs, torch.tensor([r.top_p if r.temperature else 1.0 for r in requests], device=device))
    total = logprobs.exp().double().cumsum(-1)
    numbers = torch.tensor([r.random.random() for r in requests], dtype=torch.float64, device=device)
    # The product with the last sum keeps the number inside the table when rounding makes that sum a little less than 1.
    drawn = torch.searchsorted(total, (numbers * total[:, -1])[:, None], right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    chosen = torch.where(greedy, logits.argmax(-1), drawn) if any(r.temperature == 0 for r in requests) else drawn
    likeliest: list[Likeliest] = [[] for _ in requests]
    for i, request in enumerate(requests):
        if request.top:
            values, tokens = logprobs[i].topk(min(request.top, logits.shape[1]))
            likeliest[i] = list(zip(tokens.tolist(), values.tolist(), strict=True))
    return chosen.tolist(), logprobs.gather(1, chosen[:, None])[:, 0].tolist(), likeliest


def _nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    # The likeliest token always stays; with top_p = 1 every token does.
    cut = (before >= top_p[:, None]) & (top_p[:, None] < 1)
    cut[:, 0] = False
    kept = torch.empty_like(logprobs).scatter_(1, order, ordered.masked_fill(cut, float("-inf")))
    return kept.log_softmax(-1)
