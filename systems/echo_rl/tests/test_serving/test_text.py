"""Texts that grow token by token, and stop strings over the borders of tokens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_rl.serving import ByteTokenizer, FileTokenizer, TextStream
from echo_rl.serving.chat import ChatTemplate


class Pieces:
    """A tokenizer whose tokens are numbers of pieces of text."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces, self.vocab, self.end = pieces, len(pieces), None

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.pieces[t] for t in tokens)


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.randoms())
def test_any_cut_gives_the_text_before_the_first_stop(text: str, stop: list[str], rng: random.Random) -> None:
    """Wherever the tokens cut the text: what is out is never taken back and never contains a stop string."""
    cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), 5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stream, out = TextStream(Pieces(pieces), stop), ""
    for token in range(len(pieces)):
        ended = stream.push(token)
        assert stream.text.startswith(out)
        out = stream.text
        if ended:
            break
    final = stream.finish()
    ends = [at for s in stop if (at := text.find(s)) >= 0]
    assert final.startswith(out)
    assert not any(s in final for s in stop)
    assert stream.stopped == bool(ends)
    if not ends:
        assert final == text
    else:
        # Two stop strings may overlap; the one that is whole first ends the text.
        assert (text.startswith(final) and len(final) in ends) or any(text[len(final) :].startswith(s) for s in stop)


def test_a_character_of_several_bytes_comes_whole() -> None:
    stream, seen = TextStream(ByteTokenizer()), []
    for byte in "aß€😀b".encode():
        stream.push(byte)
        seen.append(stream.text)
    assert seen == ["a", "a", "aß", "aß", "aß", "aß€", "aß€", "aß€", "aß€", "aß€😀", "aß€😀b"]


def test_bytes_that_are_no_text_come_at_the_end() -> None:
    stream = TextStream(ByteTokenizer())
    for byte in b"a\xff\xfe":
        stream.push(byte)
    assert stream.finish() == "a\ufffd\ufffd"


def test_the_end_token_is_not_text() -> None:
    stream = TextStream(ByteTokenizer(end=257))
    assert not stream.push(104)
    assert stream.push(257)
    assert stream.finish() == "h"


def test_a_tokenizer_file(tmp_path: Path) -> None:
    """Its tokens carry the spaces between words, so pieces decoded alone would run together."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer, library.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    library.train_from_iterator(["to be or not to be"] * 9, tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["</s>"]))
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = FileTokenizer(tmp_path / "tokenizer.json", end="</s>")
    stream = TextStream(tokenizer, stop=["not t"])
    tokens = tokenizer.encode("to be or not to be")
    assert tokenizer.decode(tokens) == "to be or not to be"
    assert any(stream.push(token) for token in tokens)
    assert stream.text == "to be or "
    with pytest.raises(ValueError, match="no token '<eos>'"):
        FileTokenizer(tmp_path / "tokenizer.json", end="<eos>")


def test_chat_templates(tmp_path: Path) -> None:
    """A model's own template is used, in a sandbox; what it refuses is a ValueError."""
    said = [{"role": "user", "content": "hi"}]
    assert ChatTemplate.of(tmp_path)(said) == "user: hi\nassistant:"
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"}'
    )
    assert ChatTemplate.of(tmp_path)(said) == "<s>[user]hi"
    with pytest.raises(ValueError, match="refuses this conversation: no system"):
        ChatTemplate("{{ raise_exception('no system') }}")(said)
    with pytest.raises(ValueError, match="refuses this conversation"):
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}")(said)
