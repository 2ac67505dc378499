"""Compare echo_rl's engine with Hugging Face ``generate`` on rollouts that share prompts; one thread.

Each round runs every case once, so that a busy machine slows all of them; a ratio is the median over the rounds of the ratios within a round.

Run: ``python benchmarks/rl_engine.py``. It needs transformers. The model is a random GPT-2 of 4 layers and width 256.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from echo_rl.engine import Engine, Model

Job = tuple[list[int], int]


def shared(rng: random.Random) -> list[Job]:
    """64 rollouts: a prompt of 384 that all share, 16 tokens of their own, 32 new ones."""
    stem = [rng.randrange(1000) for _ in range(384)]
    return [(stem + [rng.randrange(1000) for _ in range(16)], 32) for _ in range(64)]


def two_levels(rng: random.Random) -> list[Job]:
    """128 rollouts: a prefix of 256 that all share, 8 families of 64 more, a few of their own, 4 to 64 new ones."""
    stem = [rng.randrange(1000) for _ in range(256)]
    families = [[rng.randrange(1000) for _ in range(64)] for _ in range(8)]
    return [(stem + families[i % 8] + [rng.randrange(1000) for _ in range(19)], rng.randrange(4, 65)) for i in range(128)]


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process that ``work`` takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def with_engine(model: Model, jobs: list[Job], slots: int) -> None:
    """Run every job through one new engine."""
    engine = Engine(model, slots=slots, room=64, seed=0)
    for prompt, new in jobs:
        engine.submit(prompt, new)
    engine.run()


def with_generate(model: GPT2LMHeadModel, jobs: list[Job], batch: int) -> None:
    """Run jobs in batches, each to its longest job."""
    for i in range(0, len(jobs), batch):
        part = jobs[i : i + batch]
        tokens = torch.tensor([prompt for prompt, _ in part])
        new = max(n for _, n in part)
        with torch.inference_mode():
            model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, min_new_tokens=new, do_sample=True, top_k=0, pad_token_id=0)


def spread(values: list[float]) -> str:
    """Return the median, and the least and the greatest."""
    return f"{statistics.median(values):8.2f} ({min(values):.2f} .. {max(values):.2f})"


def main() -> None:
    """Print new tokens per CPU second and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-batch-1", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hf = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=512, n_embd=256, n_layer=4, n_head=4)).eval()
    with tempfile.TemporaryDirectory() as folder:
        hf.save_pretrained(folder)
        model = Model.load(folder)
    batches = (8, 64) if options.skip_batch_1 else (1, 8, 64)
    for name, jobs in (("shared prompt", shared(random.Random(1))), ("two-level prefixes", two_levels(random.Random(2)))):
        made = sum(n for _, n in jobs)
        with_engine(model, jobs[:8], 8)
        with_generate(hf, jobs[:8], 8)
        rates: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for slots in (8, 64):
                taken = seconds(lambda slots=slots, jobs=jobs: with_engine(model, jobs, slots))
                rates.setdefault(f"engine {slots} slots", []).append(made / taken)
            for batch in batches:
                taken = seconds(lambda batch=batch, jobs=jobs: with_generate(hf, jobs, batch))
                rates.setdefault(f"generate batch {batch}", []).append(made / taken)
        print(f"{name}: median (least .. greatest) of {options.rounds} rounds")
        for what, values in rates.items():
            print(f"  {what:38} {spread(values)} tokens per CPU second")
        for slots, batch in [(64, b) for b in batches] + [(8, 8)]:
            ratios = [a / b for a, b in zip(rates[f"engine {slots} slots"], rates[f"generate batch {batch}"], strict=True)]
            print(f"  {f'engine {slots} slots / generate batch {batch}':38} {spread(ratios)}")


if __name__ == "__main__":
    main()
