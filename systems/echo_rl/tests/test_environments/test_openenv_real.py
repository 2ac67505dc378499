"""OpenEnv's protocol against the package openenv: its client and its validator with our server, and our client with its server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from echo_rl.environments import EnvironmentFailure, make_environment
from echo_rl.environments.adapters.openenv import OpenEnvServer

pytestmark = [pytest.mark.needs("openenv"), pytest.mark.timeout(600)]  # The first import of openenv takes a minute.


def test_its_client_plays_our_environment() -> None:
    from openenv.core.generic_client import GenericEnvClient

    near = make_environment("alfworld")
    with OpenEnvServer(partial(make_environment, "alfworld"), token="secret") as server:
        with GenericEnvClient(base_url=server.url, headers={"Authorization": "Bearer secret"}).sync() as client:
            for seed in (1, 2):
                begun = client.reset(seed=seed, episode_id=f"number {seed}")
                assert begun.observation == {"observation": near.reset(seed)} and begun.metadata["admissible"] == near.admissible and not begun.done
                steps = 0
                while True:
                    command = near.environment.solve()  # type: ignore[attr-defined]
                    seen, shown = client.step({"action": command}), near.step(command)
                    steps += 1
                    assert (seen.observation["observation"], seen.reward, seen.done) == (shown.observation, shown.reward, shown.terminated)
                    if seen.done:
                        break
                assert shown.info["success"] and seen.metadata["success"] is True and client.state() == {"episode_id": f"number {seed}", "step_count": steps}
            with pytest.raises(RuntimeError, match="the field action"):
                client.step({"command": "look"})
        stranger = GenericEnvClient(base_url=server.url).sync()
        with pytest.raises(ConnectionError, match="401"):
            stranger.connect()
        stranger.close()


def test_its_client_takes_several_sessions_and_is_told_when_all_are_taken() -> None:
    from openenv.core.generic_client import GenericEnvClient

    def client() -> Any:
        return GenericEnvClient(base_url=server.url).sync()

    with OpenEnvServer(partial(make_environment, "digits"), sessions=2) as server, client() as one, client() as two:
        assert one.reset(seed=1).observation != two.reset(seed=2).observation
        with pytest.raises(Exception, match="all 2 sessions are taken"), client() as three:
            three.reset(seed=3)


def test_its_validator_passes_our_server() -> None:
    with OpenEnvServer(partial(make_environment, "arc")) as server:
        command = [sys.executable, "-m", "openenv.cli", "validate", "--url", server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0 and ["Verdict:", "PASS"] in lines, done.stdout + done.stderr
    assert {line[1] for line in lines if line[0] == "PASS"} >= {"health_endpoint", "metadata_endpoint", "schema_endpoint", "mode_endpoint_consistency"}


@pytest.fixture
def served() -> Iterator[Callable[..., str]]:
    """Serves an environment by openenv's own server, in uvicorn."""
    import socket

    import uvicorn
    from openenv.core.env_server.http_server import create_app

    running: list[tuple[Any, threading.Thread, socket.socket]] = []

    def serve(*arguments: Any, ping: float = 20.0, **options: Any) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(*arguments, **options), log_level="error", ws_ping_interval=ping, ws_ping_timeout=ping)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        running.append((server, thread, listener))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for server, thread, listener in running:
        server.should_exit = True
        thread.join()
        listener.close()


def counting() -> tuple[Any, Any, Any]:
    """An environment of openenv that asks for the sum of two numbers, and the types of its actions and observations."""
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Sum(Action):
        value: int

    class Numbers(Observation):
        text: str

    class Adding(Environment[Sum, Numbers, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Numbers:
            self.numbers = np.random.default_rng(seed).integers(0, 10, 2).tolist()
            return Numbers(text=f"{self.numbers[0]}+{self.numbers[1]}")

        def step(self, action: Sum, timeout_s: float | None = None, **_: Any) -> Numbers:
            if action.value < 0:
                raise RuntimeError("no sum is negative")
            right = action.value == sum(self.numbers)
            return Numbers(text="right" if right else "wrong", done=right, reward=float(right), metadata={"success": right})

        @property
        def state(self) -> State:
            return State()

    return Adding, Sum, Numbers


def test_our_client_plays_its_environment(served: Callable[..., str]) -> None:
    task = make_environment(f"openenv:{served(*counting(), max_concurrent_envs=1)}")
    text = task.reset(seed=3)
    assert text == "+".join(map(str, np.random.default_rng(3).integers(0, 10, 2))) == task.reset(seed=3)
    answer = sum(map(int, text.split("+")))
    assert task.step("many").info["invalid"] and task.step(answer + 1).reward == 0
    solved = task.step(str(answer))
    assert solved.observation == "right" and solved.reward == 1.0 and solved.terminated and solved.info["success"] is True
    task.reset(seed=4)
    with pytest.raises(EnvironmentFailure, match="the server answers EXECUTION_ERROR: no sum is negative"):
        task.step(-1)
    assert task.reset(seed=3) == text  # in a new session: the old one is over, or the only place would be taken
    task.close()


def test_its_server_says_when_all_places_are_taken(served: Callable[..., str]) -> None:
    url = served(*counting(), max_concurrent_envs=1)
    first, second = make_environment(f"openenv:{url}"), make_environment(f"openenv:{url}")
    first.reset(0)
    with pytest.raises(EnvironmentFailure, match="CAPACITY_REACHED"):
        second.reset(0)
    first.close()


def test_our_client_plays_our_environment_on_its_server(served: Callable[..., str]) -> None:
    """An environment of ours within one of openenv's, so that both adapters and openenv's server stand in one row."""
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Command(Action):
        command: str

    class Seen(Observation):
        text: str

    class Household(Environment[Command, Seen, State]):
        def __init__(self) -> None:
            super().__init__()
            self.task = make_environment("alfworld")

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
            return Seen(text=self.task.reset(seed or 0))

        def step(self, action: Command, timeout_s: float | None = None, **_: Any) -> Seen:
            found = self.task.step(action.command)
            return Seen(text=found.observation, done=found.terminated or found.truncated, reward=found.reward, metadata={"success": found.info["success"]})

        @property
        def state(self) -> State:
            return State()

    far, near = make_environment(f"openenv:{served(Household, Command, Seen)}"), make_environment("alfworld")
    assert far.reset(7) == near.reset(7)
    while True:
        command = near.environment.solve()  # type: ignore[attr-defined]
        seen, shown = far.step(command), near.step(command)
        assert seen == shown
        if shown.terminated:
            break
    assert seen.info["success"]
    far.close()
