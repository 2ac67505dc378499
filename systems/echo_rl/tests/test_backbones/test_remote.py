"""Backbones behind HTTP, against a server on this machine that streams, limits and drops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from echo_rl.backbones import NAMES, Backbone, BackboneError, BackboneUnavailable, Prices, Usage, backbone

from .conftest import TEXT, WORDS, Peer

ADAPTERS = ["openai", "anthropic", "google", "vllm", "sglang"]


def make(adapter: str, peer: Peer, **options: Any) -> Backbone:
    return backbone(f"{adapter}:m", url=peer.url, key="secret", **options)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_adapter_continues_prompts_in_order(adapter: str, peer: Peer) -> None:
    """Usage adds up to what the server counted, each token once."""
    with make(adapter, peer) as b:
        found = b.generate(["a", "b"], n=2, max_tokens=9, temperature=0.5, stop=["x"])
    assert [c.text for c in found] == [TEXT] * 4
    total = sum((c.usage for c in found), Usage())
    expected = {"openai": (200, 16, 128), "anthropic": (400, 16, 240), "google": (400, 16, 256), "vllm": (6, 16, 0), "sglang": (6, 16, 4)}
    assert (total.prompt, total.made, total.cached) == expected[adapter]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_pieces_come_while_the_server_still_makes_others(adapter: str, peer: Peer) -> None:
    """The server sends the second piece only after the first was seen."""
    peer.go.clear()
    with make(adapter, peer) as b:
        pieces = b.stream("a")
        assert next(pieces) == WORDS[0]
        peer.go.set()
        assert list(pieces) == WORDS[1:]


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("faults", [[("limit", "0")], ["drop", "drop"], ["half"], [("status", 503), ("limit", "0.01"), "drop"]])
def test_limits_and_dropped_connections_are_tried_again(adapter: str, faults: list[Any], peer: Peer) -> None:
    peer.faults.extend(faults)
    with make(adapter, peer) as b:
        assert b.generate(["a"])[0].text == TEXT
    assert len(peer.calls) == len(faults) + 1


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_stream_that_breaks_is_an_error_with_what_came(adapter: str, peer: Peer) -> None:
    """It is not asked again, since its reader has seen a part."""
    peer.faults.append("half")
    with make(adapter, peer) as b:
        pieces, seen = b.stream("a"), []
        with pytest.raises(BackboneError, match="broke off") as caught:
            seen.extend(piece for piece in iter(pieces.__next__, None))
    assert caught.value.partial == WORDS[0] + WORDS[1]
    assert len(peer.calls) == 1


def test_a_long_pause_is_an_error_that_says_how_long(peer: Peer) -> None:
    """Waiting an hour for a limit would look like a hang."""
    peer.faults.append(("limit", "3600"))
    with make("openai", peer) as b, pytest.raises(BackboneError, match="429: slow down; the server asks to come again in 3600 s") as caught:
        b.generate(["a"])
    assert (caught.value.status, caught.value.retry_after, len(peer.calls)) == (429, 3600.0, 1)


def test_a_date_is_a_pause_too(peer: Peer) -> None:
    peer.faults.append(("limit", "Wed, 21 Oct 2015 07:28:00 GMT"))
    with make("openai", peer) as b:
        assert b.generate(["a"])[0].text == TEXT


def test_a_refusal_is_not_tried_again(peer: Peer) -> None:
    peer.faults.append(("status", 400))
    with make("openai", peer) as b, pytest.raises(BackboneError, match="refused, 400: refused with 400"):
        b.generate(["a"])
    assert len(peer.calls) == 1


def test_a_server_that_never_answers_well(peer: Peer) -> None:
    peer.faults.extend(["drop"] * 3)
    with make("openai", peer, attempts=3) as b, pytest.raises(BackboneError, match="failed 3 times, at last with no whole answer"):
        b.generate(["a"])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_server_that_does_not_answer_in_time_is_an_error(adapter: str, peer: Peer) -> None:
    """It is asked again first, and the backbone goes on working."""
    peer.go.clear()
    peer.faults.extend(["stall"] * 2)
    with make(adapter, peer, timeout=0.3, attempts=2) as b:
        with pytest.raises(BackboneError, match="failed 2 times, at last with no whole answer: timed out"):
            b.generate(["a"])
        assert len(peer.calls) == 2
        peer.go.set()
        assert b.generate(["a"])[0].text == TEXT


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_server_that_always_limits_is_an_error_that_says_so(adapter: str, peer: Peer) -> None:
    peer.faults.extend([("limit", "0.01")] * 3)
    with make(adapter, peer, attempts=3) as b, pytest.raises(BackboneError, match="failed 3 times, at last with 429: slow down") as caught:
        b.generate(["a"])
    assert (caught.value.status, len(peer.calls)) == (429, 3)


RUBBISH: list[Any] = [None, [], {}, "text", 7, {"choices": 3}, {"choices": [None]}, {"choices": [{}]}, {"content": 3, "usage": {}, "stop_reason": None}]
RUBBISH += [{"choices": [{"index": "x", "message": [], "finish_reason": {}, "text": 5, "token_ids": "ab"}], "usage": {"prompt_tokens": "many"}}]
RUBBISH += [{"candidates": [3]}, {"candidates": {"a": 1}}, {"promptFeedback": []}, {"text": 1, "meta_info": {"finish_reason": 3}}, [{"meta_info": None}]]
# Answers of the right form with wrong parts.
CHOICE = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop", "text": "x", "token_ids": [1]}
RUBBISH += [{"choices": [CHOICE | wrong]} for wrong in ({"finish_reason": 7}, {"message": {"content": 5}, "text": 5})]
RUBBISH += [{"choices": [CHOICE], "usage": {"prompt_tokens": count}} for count in ("many", -3, 1.5)]
RUBBISH += [{"choices": []}, {"choices": [CHOICE, CHOICE]}]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_rubbish_is_an_error_and_no_answer(adapter: str, peer: Peer) -> None:
    with make(adapter, peer) as b:
        for answer in RUBBISH:
            peer.faults.append(("answer", answer))
            with pytest.raises(BackboneError):
                print(answer, b.generate(["a"]))
        peer.faults.append("garbage")
        with pytest.raises(BackboneError, match="answered no JSON"):
            b.generate(["a"])
        assert b.generate(["a"])[0].text == TEXT


def test_an_answer_of_another_kind_is_named(peer: Peer) -> None:
    peer.faults.append("garbage")
    with make("openai", peer) as b, pytest.raises(BackboneError, match="answered no JSON: b'<html>"):
        b.generate(["a"])
    with backbone("anthropic:m", url=peer.url + "/v1/chat/completions/..", key="k") as b:
        peer.faults.clear()
        b.api.post = lambda path, body: {"choices": []}  # type: ignore[attr-defined]
        with pytest.raises(BackboneError, match="is not of its interface"):
            b.generate(["a"])


def test_keys_go_where_each_interface_wants_them(peer: Peer) -> None:
    for adapter, header, value in (("openai", "Authorization", "Bearer secret"), ("anthropic", "x-api-key", "secret"), ("google", "x-goog-api-key", "secret")):
        with make(adapter, peer) as b:
            b.generate(["a"])
        assert peer.calls[-1][1][header] == value
    assert peer.calls[1][1]["anthropic-version"]


def test_conversations_take_each_interfaces_form(peer: Peer) -> None:
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    bodies = {}
    for adapter in ("openai", "anthropic", "google"):
        with make(adapter, peer) as b:
            b.generate([said], temperature=None, stop=["."])
        bodies[adapter] = peer.calls[-1][2]
    assert bodies["openai"] == {"model": "m", "messages": said, "max_completion_tokens": 256, "stop": ["."]}
    assert bodies["anthropic"] == {"model": "m", "messages": said[1:], "system": "be brief", "max_tokens": 256, "stop_sequences": ["."]}
    assert bodies["google"]["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": "yes"}]}]
    assert bodies["google"]["systemInstruction"] == {"parts": [{"text": "be brief"}]}


def test_tokens_in_and_out(peer: Peer) -> None:
    """What training needs: tokens, their log-probabilities, and the version where the server tells it."""
    with make("vllm", peer) as b:
        vllm = b.generate([[5, 6, 7]], logprobs=True)[0]
    assert peer.calls[-1][2]["prompt"] == [5, 6, 7] and peer.calls[-1][2]["return_token_ids"] is True
    with make("sglang", peer) as b:
        sglang = b.generate([[5, 6, 7]], logprobs=True)[0]
    assert peer.calls[-1][2]["input_ids"] == [5, 6, 7]
    assert vllm.tokens == sglang.tokens == (1, 2, 3, 4)
    assert vllm.logprobs == pytest.approx(sglang.logprobs)
    assert sglang.versions == ("7",) * 4
    for adapter in ("openai", "anthropic", "google"):
        with make(adapter, peer) as b, pytest.raises(ValueError, match="tokens need a local model, vLLM or SGLang"):
            b.generate([[5, 6]])


def test_verbs_of_the_servers(peer: Peer) -> None:
    with make("sglang", peer) as b:
        b.pause(), b.update_weights("/weights", 8), b.resume()  # type: ignore[attr-defined]
        assert [path for path, _, _ in peer.calls] == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        assert peer.calls[1][2]["weight_version"] == "8"
        with pytest.raises(BackboneError, match="did not load '/other'"):
            b.update_weights("/other", 9)  # type: ignore[attr-defined]
    with make("vllm", peer) as b:
        b.pause(), b.resume()  # type: ignore[attr-defined]
        assert [path for path, _, _ in peer.calls[-2:]] == ["/pause?mode=keep&clear_cache=true", "/resume"]
        with pytest.raises(BackboneError, match="no weights over HTTP"):
            b.update_weights("/weights", 8)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_key_names_its_variable(name: str, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the key, every name of the table reaches its model."""
    variable = NAMES[name].variable
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(BackboneUnavailable, match=f"{name} needs {variable}"):
        backbone(name)
    monkeypatch.setenv(variable, "secret")
    with backbone(name, url=peer.url) as b:
        assert b.generate(["a"], n=2)[1].text == TEXT
    path, _, body = peer.calls[-1]
    assert NAMES[name].model in (path + str(body.get("model")))


def test_prices_are_the_users(peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached tokens have their own price; a model without a price has no cost rather than a cost of 0."""
    file = tmp_path / "prices.toml"
    file.write_text('["m"]\nprompt = 2.0\nmade = 10.0\ncached = 0.5\n')
    monkeypatch.setenv("ECHO_RL_PRICES", str(file))
    with make("openai", peer) as b:
        assert b.generate(["a"])[0].cost == pytest.approx((36 * 2.0 + 64 * 0.5 + 4 * 10.0) / 1e6)
    with make("openai", peer, prices=Prices({})) as b:
        assert b.generate(["a"])[0].cost is None
    for bad in ({"m": {"prompt": 1.0}}, {"m": {"prompt": -1.0, "made": 1.0}}, {"m": {"prompt": 1.0, "made": "free"}}):
        with pytest.raises(ValueError, match="'m'"):
            Prices(bad)  # type: ignore[arg-type]


def test_a_key_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ValueError, match="would send the key unencrypted; use https://"):
        backbone("openai:m", url="http://models.example", key="secret")
    with pytest.raises(ValueError, match="is no http:// or https:// URL"):
        backbone("openai:m", url="file:///etc/passwd", key="secret")


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(BackboneUnavailable, match="did you mean 'gpt-4o'"):
        backbone("gpt-4")
    with pytest.raises(BackboneUnavailable, match="did you mean 'vllm'"):
        backbone("vlm:x")
    with pytest.raises(BackboneUnavailable, match="names no model; write local:MODEL"):
        backbone("local")


def completion(tokens: object, logprobs: object, finish: str = "stop") -> Any:
    return {"choices": [{"text": "x", "finish_reason": finish, "token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}], "usage": {}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (completion([1, 2], [None, -0.1]), "the log-probability None"),
        (completion([1, 2], [3.0, -0.1]), "the log-probability 3.0"),
        (completion([1, 2], [float("nan"), -0.1]), "the log-probability nan"),
        (completion([1, 2], [-9999.0, -0.1]), "the log-probability -9999.0"),
        (completion([1, 2], [-0.1]), "2 tokens and 1 log-prob"),
        (completion(None, [-0.1]), "no tokens"),
        (completion([1.5, 2], [-0.1, -0.2]), "no whole numbers"),
        (completion([1], [-0.1], "abort"), "finish_reason='abort'"),
        ({"choices": [{"text": "x", "finish_reason": "stop", "token_ids": [1, 2]}]}, "no log-probabilities, although"),
        ({"choices": []}, "gave 0 continuations of a prompt, and 1 were"),
    ],
)
def test_answers_that_a_learner_must_not_take(answer: Any, words: str, peer: Peer) -> None:
    with make("vllm", peer) as b:
        b.api.post = lambda path, body: answer  # type: ignore[attr-defined]
        with pytest.raises(BackboneError, match=words):
            b.generate([[5]], max_tokens=2, logprobs=True)
    choice = answer["choices"][0] if answer["choices"] else None
    if choice is not None and choice["token_ids"] and choice.get("logprobs"):
        pairs = [[p, t, None] for p, t in zip(choice["logprobs"]["token_logprobs"], choice["token_ids"], strict=False)]
        meta = {"prompt_tokens": 1, "completion_tokens": 2, "finish_reason": {"type": choice["finish_reason"]}, "output_token_logprobs": pairs}
        if len(pairs) == len(choice["token_ids"]):
            with make("sglang", peer) as b:
                b.api.post = lambda path, body: {"text": "x", "meta_info": meta}  # type: ignore[attr-defined]
                with pytest.raises(BackboneError, match=words):
                    b.generate([[5]], max_tokens=2, logprobs=True)


def test_log_probabilities_before_the_temperature_are_refused(peer: Peer) -> None:
    """A server that tells those after it is named by ``processed=True``."""
    with make("vllm", peer) as b, pytest.raises(ValueError, match="before temperature=0.6"):
        b.generate([[5]], temperature=0.6, logprobs=True)
    assert not peer.calls
    with make("vllm", peer, processed=True) as b:
        assert b.generate([[5]], temperature=0.6, logprobs=True)[0].logprobs == (-0.1, -0.2, -0.3, -0.4)


@pytest.mark.parametrize("token", [1.9, True, -1])
def test_a_prompt_with_what_is_no_token_is_refused(token: Any, peer: Peer) -> None:
    with make("vllm", peer) as b, pytest.raises(ValueError, match="which is no token"):
        b.generate([[5, token]])


def sent(peer: Peer, adapter: str, begin: int = 0) -> list[dict[str, Any]]:
    """Return the options of sampling in the bodies of the calls, in the order of their seeds, since calls go out side by side."""
    part = {"google": "generationConfig", "sglang": "sampling_params"}.get(adapter)
    found = [body[part] if part else body for _, _, body in peer.calls[begin:]]
    return sorted(found, key=lambda options: next((value for name, value in options.items() if name.endswith("seed")), 0))


@pytest.mark.parametrize(
    ("adapter", "options", "names", "seeds"),
    [
        ("openai", {}, ("seed", "top_p"), [7, 9]),
        ("openai", {"many": False}, ("seed", "top_p"), [7, 8, 9, 10]),
        ("google", {}, ("seed", "topP"), [7, 8, 9, 10]),
        ("vllm", {}, ("seed", "top_p"), [7, 9]),
        ("sglang", {"deterministic": True}, ("sampling_seed", "top_p"), [7, 8, 9, 10]),
    ],
)
def test_every_continuation_has_its_own_seed(adapter: str, options: dict[str, Any], names: tuple[str, str], seeds: list[int], peer: Peer) -> None:
    """A server that makes several choices in a call counts on from the call's seed."""
    with make(adapter, peer, **options) as b:
        assert len(b.generate(["a", "b"], n=2, seed=7, top_p=0.5)) == 4
        found = sent(peer, adapter)
        assert [body[names[0]] for body in found] == seeds and {body[names[1]] for body in found} == {0.5}
        before = len(peer.calls)
        b.generate(["a"])
        assert names[0] not in sent(peer, adapter, before)[0]


def test_what_a_server_has_no_option_for_is_refused(peer: Peer) -> None:
    with make("anthropic", peer) as b:
        b.generate(["a"], top_p=0.5)
        assert peer.calls.pop()[2]["top_p"] == 0.5
        with pytest.raises(ValueError, match="anthropic:m takes no seed"):
            b.generate(["a"], seed=1)
    with make("google", peer) as b, pytest.raises(ValueError, match="takes seeds below 2147483648"):
        b.generate(["a"], n=2, seed=2**31 - 1)
    with make("sglang", peer) as b:
        with pytest.raises(ValueError, match="follows no seed: start SGLang with --enable-deterministic-inference"):
            b.generate(["a"], seed=1)
        with pytest.raises(ValueError, match=r"before top_p=0\.5"):
            b.generate(["a"], top_p=0.5, logprobs=True)
    with make("vllm", peer) as b, pytest.raises(ValueError, match=r"before temperature=1\.0 and top_p=0\.5"):
        b.generate(["a"], top_p=0.5, logprobs=True)
    assert not peer.calls


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(("options", "words"), [({"seed": -1}, "seed must be"), ({"seed": 1.5}, "seed must be"), ({"top_p": 0.0}, "top_p must be")])
def test_wrong_seeds_and_top_p_are_named(adapter: str, options: dict[str, Any], words: str, peer: Peer) -> None:
    with make(adapter, peer) as b, pytest.raises(ValueError, match=words):
        b.generate(["a"], **options)
    assert not peer.calls


@pytest.mark.parametrize("adapter", ["vllm", "sglang"])
def test_no_default_of_the_server_changes_what_is_drawn(adapter: str, peer: Peer) -> None:
    """A penalty of the model's generation_config would make log-probabilities that no learner computes."""
    with make(adapter, peer) as b:
        b.generate(["a"])
        list(b.stream("a"))
    for options in sent(peer, adapter):
        assert {name: options[name] for name in ("top_p", "top_k", "min_p", "repetition_penalty")} == {
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
