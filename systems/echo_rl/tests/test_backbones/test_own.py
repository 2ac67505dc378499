"""Backbones in this process, and the remote ones against Echo's own endpoint, which is a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from echo_rl.backbones import BackboneUnavailable, backbone
from echo_rl.backbones.local import LocalBackbone
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.serving import Endpoint, EngineWorker

CONFIG = ModelConfig("gpt2", vocab=260, layers=2, heads=4, width=32, inner=64, context=256)


@pytest.fixture
def engine() -> Engine:
    return Engine(Model.random(CONFIG, scale=0.3), slots=8, room=128, seed=3)


def test_the_local_engine(engine: Engine) -> None:
    with LocalBackbone(engine) as b:
        found = b.generate(["abc", [1, 2, 3]], n=2, max_tokens=8)
        assert [len(c.tokens or ()) for c in found] == [8] * 4
        assert all(len(c.logprobs or ()) == 8 and c.versions == (0,) * 8 and c.finish == "length" for c in found)
        assert [c.usage.prompt for c in found] == [3, 0, 3, 0]
        whole = b.generate(["abc"], max_tokens=20, temperature=0)[0].text
        assert "".join(b.stream("abc", max_tokens=20, temperature=0)) == whole
        stop = whole[6:8]
        stopped = b.generate(["abc"], max_tokens=20, temperature=0, stop=[stop])[0]
        assert (stopped.text, stopped.finish) == (whole[: whole.index(stop)], "stop")
        b.worker.update_weights(Model.random(CONFIG, 1, scale=0.3), 4)
        assert b.generate(["abc"], max_tokens=2)[0].versions == (4, 4)


def test_a_stream_that_nobody_reads_on_is_aborted(engine: Engine) -> None:
    with LocalBackbone(engine) as b:
        pieces = b.stream("abc", max_tokens=128)
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        assert b.worker.stats()["running"] == 0


def test_remote_backbones_speak_to_the_endpoint(engine: Engine) -> None:
    """Tokens, log-probabilities and versions of the same engine, over HTTP."""
    with Endpoint(engine) as endpoint, backbone("vllm:echo", url=endpoint.url.removesuffix("/v1"), key=endpoint.token) as b:
        found = b.generate([[1, 2, 3]], n=2, max_tokens=6, temperature=0, logprobs=True)
        alone = Engine(engine.model, slots=1, room=8)
        request = alone.submit([1, 2, 3], 6, temperature=0)
        alone.run()
        assert [c.tokens for c in found] == [tuple(request.output)] * 2 and found[0].versions == (0,) * 6
        assert found[0].logprobs == pytest.approx(request.logprobs, abs=1e-4)
        assert "".join(b.stream([1, 2, 3], max_tokens=6, temperature=0)) == found[0].text
        with backbone("openai:echo", url=endpoint.url, key=endpoint.token) as chat:
            answer = chat.generate([[{"role": "user", "content": "hi"}]], n=2, max_tokens=5, temperature=0, logprobs=True)
            assert answer[0].text == answer[1].text and len(answer[0].logprobs or ()) == 5
            assert "".join(chat.stream("hi", max_tokens=5, temperature=0)) == answer[0].text


def test_a_seed_gives_the_same_answers_here_and_over_http(engine: Engine) -> None:
    """Each continuation has its own seed, whatever else the engine serves, and top_p leaves unlikely tokens out."""
    options: dict[str, object] = {"n": 2, "max_tokens": 12, "top_p": 0.6, "seed": 11}
    alone = Engine(engine.model, slots=1, room=16)
    requests = [alone.submit(prompt, 12, top_p=0.6, seed=11 + i) for i, prompt in enumerate(([65], [65], [66], [66]))]
    alone.run()
    expected = [tuple(r.output) for r in requests]
    assert len(set(expected)) == 4
    with EngineWorker(engine) as worker, Endpoint(worker) as endpoint, LocalBackbone(worker) as local:
        assert [c.tokens for c in local.generate(["A", "B"], **options)] == expected  # type: ignore[arg-type]
        with backbone("vllm:echo", url=endpoint.url.removesuffix("/v1"), key=endpoint.token, processed=True) as b:
            found = b.generate(["A", "B"], **options, logprobs=True)  # type: ignore[arg-type]
            assert [c.tokens for c in found] == expected
            for completion, request in zip(found, requests, strict=True):
                assert completion.logprobs == pytest.approx(request.logprobs, abs=1e-4)
        with pytest.raises(ValueError, match="seed must be a whole number"):
            local.generate(["A"], seed=-1)


def test_a_transformers_folder(tmp_path: Path) -> None:
    """``hf:`` and ``local:`` give the same tokens and log-probabilities for the same folder."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    transformers.utils.logging.disable_progress_bar()  # it would leave a thread behind
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=260, n_positions=128, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3, eos_token_id=None, bos_token_id=None
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with backbone(f"hf:{tmp_path}", batch=3, four_bit=False) as hf, backbone(f"local:{tmp_path}", room=64) as local:
        prompts = ["abcd", [1, 2], [{"role": "user", "content": "x"}]]
        ours, theirs = (b.generate(prompts, n=2, max_tokens=12, temperature=0, logprobs=True) for b in (local, hf))
        assert [c.tokens for c in theirs] == [c.tokens for c in ours]
        assert [c.text for c in theirs] == [c.text for c in ours]
        assert "".join(hf.stream("abcd", max_tokens=12, temperature=0)) == theirs[0].text
        stop = theirs[0].text[4:6]
        expected = theirs[0].text[: theirs[0].text.index(stop)]
        stopped = hf.generate(["abcd", "zz"], max_tokens=12, temperature=0, stop=[stop])
        assert (stopped[0].text, stopped[0].finish) == (expected, "stop")
        drawn = hf.generate(["abcd"], max_tokens=12, temperature=0.7, logprobs=True)[0]
        with torch.inference_mode():
            scores = hf._model(torch.tensor([list(b"abcd") + list(drawn.tokens or ())], device=hf._device)).logits[0, 3:-1]  # type: ignore[attr-defined]
        known = torch.log_softmax(scores / 0.7, -1)
        assert drawn.logprobs == pytest.approx([float(known[i, t]) for i, t in enumerate(drawn.tokens or ())], abs=1e-4)
        # Of a very small top_p, only the likeliest token is left.
        assert hf.generate(["abcd"], max_tokens=12, top_p=1e-6)[0].tokens == theirs[0].tokens
        with pytest.raises(ValueError, match="takes no seed, since transformers draws from random numbers that the whole process shares"):
            hf.generate(["abcd"], seed=1)
        pieces = hf.stream("abcd", max_tokens=64)
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        if not torch.cuda.is_available():
            with pytest.raises(BackboneUnavailable, match="needs CUDA and bitsandbytes for 4 bits"):
                backbone(f"hf:{tmp_path}", four_bit=True)


@pytest.mark.parametrize("adapter", ["local", "hf"])
def test_the_ends_of_the_models_files(adapter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An answer ends at each of them, without padding after it, and a penalty of the files is reported and not applied."""
    if adapter == "hf":
        pytest.importorskip("transformers", reason="transformers is not installed").utils.logging.disable_progress_bar()
    model = Model.random(CONFIG, scale=0.3)
    model.save(tmp_path)
    engine = Engine(model, slots=16, room=48, seed=1)
    requests = [engine.submit([65, 66, 67], 24, temperature=0)]
    engine.run()
    greedy = requests[0].output
    end = greedy[5]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, end], "repetition_penalty": 1.3}))
    with backbone(f"{adapter}:{tmp_path}", **({"room": 48} if adapter == "local" else {"device": "cpu"})) as b:
        found = b.generate([[65, 66, 67]], n=2, max_tokens=24, temperature=0, logprobs=True)
    first = greedy.index(end) + 1
    for completion in found:
        assert (completion.tokens, completion.finish) == (tuple(greedy[:first]), "stop")
        assert completion.logprobs == pytest.approx(requests[0].logprobs[:first], abs=1e-4)
    assert "repetition_penalty=1.3, which is not applied" in caplog.text


def test_a_missing_folder_is_named() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(BackboneUnavailable, match="'/nowhere' is none"):
        backbone("hf:/nowhere")
