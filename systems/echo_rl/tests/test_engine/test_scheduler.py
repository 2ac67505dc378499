"""The order in which requests are admitted."""

import pytest

from echo_rl.engine import Engine, Model, ModelConfig, Request

POLICIES = ["fcfs", "lpm", "hrrn", "bandwidth", "value"]


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_waits_for_ever(policy: str, configs: dict[str, ModelConfig]) -> None:
    """A request that every policy but fcfs dislikes is served while better ones keep arriving."""
    now = [0.0]
    engine = Engine(Model.random(configs["gpt2"], scale=0.3), slots=2, room=64, scheduler=policy, clock=lambda: now[0])
    unlucky: Request | None = None
    for i in range(400):
        now[0] += 1.0
        engine.submit([1, 2, 3, 4, 5, 6], 2, value=10.0)
        if i == 20:
            unlucky = engine.submit(range(10, 39), 60, value=0.001)
        engine.step()
        if unlucky is not None and unlucky.output:
            return
    raise AssertionError(f"{policy} let a request wait for {400 - 20} steps")


def test_an_unknown_policy_is_named(configs: dict[str, ModelConfig]) -> None:
    """The error lists the policies."""
    with pytest.raises(ValueError, match="'sjf' is unknown; use one of fcfs, lpm, hrrn, bandwidth, value"):
        Engine(Model.random(configs["gpt2"]), scheduler="sjf")


@pytest.mark.parametrize("policy", ["bandwidth", "value"])
def test_a_worse_value_never_gains(policy: str, configs: dict[str, ModelConfig]) -> None:
    """Among equal prompts the higher value goes first, also if both are negative or zero."""
    for worse, better in ((-5.0, -1.0), (-1.0, 0.0), (0.0, 2.0)):
        engine = Engine(Model.random(configs["gpt2"]), slots=1, scheduler=policy, clock=lambda: 0.0)
        requests = {value: engine.submit([1, 2, 3], 2, value=value) for value in (worse, better)}
        assert engine.run() == [requests[better], requests[worse]]
