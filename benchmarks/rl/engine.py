"""Compare echo_rl's engine with Hugging Face ``generate`` on rollouts that share prompts, for a GPT-2 and for a Llama with grouped heads; one thread.

``generate`` runs in two ways: plainly, and from a copy of the shared prefix's keys and values that were computed once. Each round runs every case
once, so that a busy machine slows all of them; a ratio is the median over the rounds of the ratios within a round.

Run: ``python -m benchmarks.rl.engine``. It needs transformers. The models are random, of 4 layers and width 256.
"""

import argparse
import copy
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

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


def with_generate(model: PreTrainedModel, jobs: list[Job], batch: int, shared: int = 0) -> None:
    """Run jobs in batches, each to its longest job. The first ``shared`` tokens are those of all jobs, and are computed once."""
    prefix = DynamicCache(config=model.config)
    with torch.inference_mode():
        if shared:
            model(torch.tensor([jobs[0][0][:shared]]), past_key_values=prefix, use_cache=True)
        for i in range(0, len(jobs), batch):
            part = jobs[i : i + batch]
            tokens = torch.tensor([prompt for prompt, _ in part])
            new = max(n for _, n in part)
            options = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": new, "min_new_tokens": new, "do_sample": True, "top_k": 0}
            options["pad_token_id"] = 0
            if shared:
                cache = copy.deepcopy(prefix)
                cache.batch_repeat_interleave(len(part))
                options["past_key_values"] = cache
            model.generate(tokens, **options)


def models() -> dict[str, PreTrainedModel]:
    """Return the two random models."""
    llama = LlamaConfig(
        vocab_size=1000, max_position_embeddings=512, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2
    )
    gpt2 = GPT2Config(vocab_size=1000, n_positions=512, n_embd=256, n_layer=4, n_head=4)
    return {"GPT-2": GPT2LMHeadModel(gpt2).eval(), "Llama, 8 heads and 2 of keys": LlamaForCausalLM(llama).eval()}


def spread(values: list[float]) -> str:
    """Return the median, and the least and the greatest."""
    return f"{statistics.median(values):8.2f} ({min(values):.2f} .. {max(values):.2f})"


def main() -> None:
    """Print new tokens per CPU second and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-64", action="store_true", help="leave out batches of 1 and 8")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batches = (64,) if options.only_64 else (1, 8, 64)
    for kind, hf in models().items():
        with tempfile.TemporaryDirectory() as folder:
            hf.save_pretrained(folder)
            model = Model.load(folder)
        for name, jobs, stem in (("shared prompt", shared(random.Random(1)), 384), ("two-level prefixes", two_levels(random.Random(2)), 256)):
            made = sum(n for _, n in jobs)
            with_engine(model, jobs[:8], 8)
            with_generate(hf, jobs[:8], 8)
            cases: dict[str, Callable[[], None]] = {"engine 64 slots": lambda jobs=jobs, model=model: with_engine(model, jobs, 64)}
            for batch in batches:
                cases[f"generate batch {batch}"] = lambda batch=batch, jobs=jobs, hf=hf: with_generate(hf, jobs, batch)
            cases["generate batch 64, prefix cached"] = lambda jobs=jobs, hf=hf, stem=stem: with_generate(hf, jobs, 64, stem)
            rates: dict[str, list[float]] = {}
            for _ in range(options.rounds):
                for what, work in cases.items():
                    rates.setdefault(what, []).append(made / seconds(work))
            print(f"{kind}, {name}: median (least .. greatest) of {options.rounds} rounds")
            for what, values in rates.items():
                print(f"  {what:44} {spread(values)} tokens per CPU second")
            for what in list(rates)[1:]:
                ratios = [a / b for a, b in zip(rates["engine 64 slots"], rates[what], strict=True)]
                print(f"  {'engine / ' + what:44} {spread(ratios)}", flush=True)


if __name__ == "__main__":
    main()
