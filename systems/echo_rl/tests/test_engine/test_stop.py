"""What ends a request, and what each token says about its draw."""

from __future__ import annotations

import pytest
import torch

from echo_rl.engine import Engine, Model, ModelConfig


def engine(configs: dict[str, ModelConfig], **options: int) -> Engine:
    return Engine(Model.random(configs["gpt2"], scale=0.3), slots=3, room=32, seed=4, **options)


def test_a_sequence_of_tokens_stops(configs: dict[str, ModelConfig]) -> None:
    """It is found over any number of steps, but not where only its end was made."""
    alone = engine(configs)
    reference = alone.submit([1, 2, 3], 20, seed=7)
    alone.run()
    sequence = tuple(reference.output[5:8])
    other = engine(configs)
    stopped = other.submit([1, 2, 3], 20, seed=7, stop=[sequence])
    begun_by_the_prompt = other.submit([1, 2, 3], 20, seed=7, stop=[(3, reference.output[0])])
    other.run()
    first = next(i for i in range(3, 21) if tuple(reference.output[i - 3 : i]) == sequence)
    assert (stopped.output, stopped.finish) == (reference.output[:first], "stop")
    assert len(begun_by_the_prompt.output) > 1


def test_a_watcher_sees_every_token_and_may_stop(configs: dict[str, ModelConfig]) -> None:
    seen: list[int] = []

    def watch(token: int) -> bool:
        seen.append(token)
        return len(seen) == 5

    e = engine(configs)
    request = e.submit([4, 5], 30, watch=watch)
    e.run()
    assert (request.output, request.finish) == (seen, "stop")
    assert len(seen) == 5


def test_the_likeliest_tokens_come_with_each_draw(configs: dict[str, ModelConfig]) -> None:
    """They are those of the distribution that was drawn from, and only requests that ask get them."""
    e = engine(configs)
    asks, other = e.submit([4, 5, 6], 6, top=3, temperature=0), e.submit([4, 5, 6], 6, temperature=0)
    e.run()
    assert [best[0] for best in asks.likeliest] == list(zip(asks.output, asks.logprobs, strict=True))
    assert all(len(best) == 3 and best[0][1] >= best[1][1] >= best[2][1] for best in asks.likeliest)
    assert other.likeliest == [] and other.output == asks.output


def test_bad_options_are_named(configs: dict[str, ModelConfig]) -> None:
    e = engine(configs)
    with pytest.raises(ValueError, match="a stop sequence is empty"):
        e.submit([1], 2, stop=[()])
    with pytest.raises(ValueError, match=r"top=41 is not in 0 \.\. 40"):
        e.submit([1], 2, top=41)


def test_training_in_place_does_not_change_a_version_in_use(configs: dict[str, ModelConfig]) -> None:
    """The engine computes with copies; only ``update_weights`` brings other numbers."""
    e, reference = engine(configs), engine(configs)
    weights = {name: value.clone() for name, value in e.model.weights.items()}
    e.update_weights(weights, 1)
    reference.update_weights({name: value.clone() for name, value in weights.items()}, 1)
    with torch.no_grad():
        for value in weights.values():
            value.mul_(3)
    got, expected = (x.submit([1, 2, 3], 8, seed=1) for x in (e, reference))
    e.run(), reference.run()
    assert (got.output, got.logprobs) == (expected.output, expected.logprobs)


def test_a_refused_update_leaves_the_engine_as_it_was(configs: dict[str, ModelConfig]) -> None:
    e = engine(configs)
    request = e.submit([1, 2, 3], 6)
    e.step()
    broken = dict(e.model.weights)
    del broken["wte.weight"]
    with pytest.raises(ValueError, match="the weights lack 'wte.weight'"):
        e.update_weights(broken, 1)
    with pytest.raises(ValueError, match="version 0 is not newer than 0"):
        e.update_weights(e.model, 0)
    e.run()
    assert set(request.versions) == {0} and e.stats()["flushed_tokens"] == 0


def test_a_pause_keeps_requests_and_weights_may_change_meanwhile(configs: dict[str, ModelConfig]) -> None:
    e = engine(configs)
    request = e.submit([1, 2, 3], 6)
    e.step(), e.step()
    made = len(request.output)
    e.pause()
    assert e.step() == [] and len(request.output) == made
    with pytest.raises(RuntimeError, match="the engine is paused"):
        e.run()
    e.update_weights(Model.random(configs["gpt2"], 1, scale=0.3), 5)
    e.resume()
    e.run()
    assert request.versions == [0] * made + [5] * (6 - made)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("temperature", float("nan"), "temperature must"),
        ("temperature", float("inf"), "temperature must"),
        ("top_p", float("nan"), "top_p must"),
        ("value", float("nan"), "value must"),
        ("value", float("inf"), "value must"),
        ("max_new", 0, "max_new must"),
        ("max_new", 2.5, "max_new must"),
        ("tokens", [1.9], "the prompt holds 1.9, which is no token"),
        ("tokens", ["7"], "the prompt holds '7', which is no token"),
        ("tokens", [True], "the prompt holds True, which is no token"),
        ("stop", [300000], "the model knows 0"),
        ("stop", "ab", "is a text"),
        ("seed", -1, "seed must"),
        ("seed", 1.5, "seed must"),
        ("top", -1, "top must"),
    ],
)
def test_what_is_no_number_reaches_no_step(option: str, value: object, words: str, configs: dict[str, ModelConfig]) -> None:
    e = engine(configs)
    with pytest.raises(ValueError, match=words):
        e.submit(**{"tokens": [1, 2, 3], "max_new": 4, option: value})  # type: ignore[arg-type]
    assert e.run() == []


def test_a_fork_takes_over_what_ends_its_request(configs: dict[str, ModelConfig]) -> None:
    seen: list[int] = []
    e = engine(configs)
    request = e.submit([1, 2], 4, stop=[5], top_p=0.5, watch=lambda token: bool(seen.append(token)))
    branch = e.fork(request, 1, 4)[0]
    assert (branch.stop, branch.top_p, branch.watch) == (request.stop, 0.5, request.watch)
    assert e.fork(request, 1, 4, top_p=0.9)[0].top_p == 0.9
    with pytest.raises(ValueError, match="branches must"):
        e.fork(request, -1, 4)
