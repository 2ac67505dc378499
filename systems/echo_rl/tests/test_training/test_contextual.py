"""A model behind an interface gives no log-probabilities: a small policy learns which of its proposals to take. The server speaks OpenAI's protocol."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from echo_core import ConfigError  # noqa: E402
from echo_rl import EchoRLTrainer, TrainingConfig, backbones, environments  # noqa: E402
from echo_rl.backbones import Prices, backbone, register_backbone  # noqa: E402
from echo_rl.core import ExecutionConfig, PPOConfig  # noqa: E402
from echo_rl.environments import register_environment  # noqa: E402
from echo_rl.environments.proposals import ProposalsConfig, Proposer  # noqa: E402
from echo_rl.evaluation.benchmark import BenchmarkConfig, EchoRLBenchmark  # noqa: E402


class Doors:
    """Three doors. The first text says which one is right, and the second one does not, so that it has to be remembered."""

    admissible = ["red", "green", "blue"]

    def reset(self, seed: int) -> str:
        self._right, self._steps = self.admissible[int(np.random.default_rng(seed).integers(3))], 0
        return f"The {self._right} door is open."

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        right = action == self._right
        return "The doors are dark.", float(right), False, self._steps == 2, {"success": right}


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        texts = [f"Action: {Doors.admissible[(i + 1) % 3].upper()}." for i in range(body.get("n", 1))]
        choices = [{"index": i, "message": {"content": text}, "finish_reason": "stop"} for i, text in enumerate(texts)]
        data = json.dumps({"choices": choices, "usage": {"prompt_tokens": 100, "completion_tokens": 5 * len(choices)}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(environments, "_registered", {})
    monkeypatch.setattr(backbones, "_registered", {})
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    register_environment("doors", Doors)
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.bodies = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    url, prices = f"http://127.0.0.1:{server.server_address[1]}/v1", Prices({"m": {"prompt": 1.0, "made": 100.0}})
    register_backbone("chat", lambda **options: backbone("openai:m", url=url, key="k", **{"prices": prices, **options}))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


RUN: dict[str, Any] = {
    "learning_starts": 0,
    "num_actors": 8,
    "actor_processes": 0,
    "train_frequency": 16,
    "batch_size": 64,
    "evaluation_frequency": 10**9,
    "eta": 0,
    "execution": ExecutionConfig(max_new_tokens=8),
    "ppo": PPOConfig(learning_rate=5e-3, epochs=6, kl_coef=0.0),
}


def test_a_policy_learns_what_to_choose_and_plays(chat: Any) -> None:
    """It needs no log-probabilities of the model."""
    trainer = EchoRLTrainer(TrainingConfig("doors", 1_024, backbone="chat", seed=2, evaluation_episodes=24, **RUN))
    begun = trainer.player()
    results = trainer.run().evaluation_results
    assert results["avg_reward"] > 1.1, results  # 2/3 by chance; 1 and 1/3 by the first text alone
    assert not any("logprobs" in body for body in chat.bodies) and chat.bodies[-1]["n"] == 4 and chat.bodies[-1]["max_completion_tokens"] == 8
    scores = []
    for player in (begun, trainer.player()):
        rewards = []
        for task in range(12):
            doors = Doors()
            observation: Any = doors.reset(10_000 + task)
            player.begin()
            for _ in range(2):
                observation, reward, *_ = doors.step(player.act(observation, doors.admissible))
                rewards.append(reward)
        scores.append(np.mean(rewards))
        assert player.usage.prompt == 200 and player.usage.made == 40 and player.cost == pytest.approx((200 + 40 * 100) / 1e6)
    assert scores[1] > 0.55 > scores[0]


def test_the_benchmark_trains_it_and_counts_its_cost(chat: Any, tmp_path: Any) -> None:
    trainer = {"backbone": "chat", "total_timesteps": 128, "num_actors": 8, "train_frequency": 16, "algorithm": "ppo"}
    config = BenchmarkConfig(["doors"], baselines=["impala"], num_seeds=1, num_episodes=3, echo_rl_configs=trainer, output_dir=str(tmp_path))
    rows = {row["method"]: row for row in EchoRLBenchmark(config).run().rows}
    for method in ("impala", "echo-rl"):
        assert rows[method]["episodes"] == 3 and rows[method]["cost"] == pytest.approx(3 * 4200 / 1e6) and rows[method]["kv_reuse"] is None, rows[method]


def test_fewer_proposals_are_filled_up(chat: Any) -> None:
    config = ProposalsConfig("doors", "chat", count=6, width=16)
    proposer = Proposer(config, backbone("chat"))
    offered = proposer.offer("Doors.", Doors.admissible)
    assert offered.actions == ["green", "blue", "red", "green", "blue", "red"] and offered.state.shape == (7 * 16,)
    assert np.allclose(np.linalg.norm(offered.state.reshape(7, 16), axis=1), 1.0) and offered.state.dtype == np.float32
    proposer.chosen("red")
    proposer.offer("Dark.", None)
    assert [message["role"] for message in chat.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]
    assert chat.bodies[-1]["messages"][2]["content"] == "Action: red"
    proposer.model.close()


def test_what_is_missing_is_said_before_the_run(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="backbone 'gpt-4o': gpt-4o needs OPENAI_API_KEY"):
        EchoRLTrainer(TrainingConfig("doors", 1_000, backbone="gpt-4o", **RUN))
    with pytest.raises(ConfigError, match="algorithm='grpo' trains language models"):
        EchoRLTrainer(TrainingConfig("doors", 1_000, backbone="chat", algorithm="grpo", **RUN))
    monkeypatch.setitem(sys.modules, "gymnasium.spaces", None)
    with pytest.raises(ConfigError, match="backbone 'chat': a policy over its proposals needs Gymnasium: pip install gymnasium"):
        EchoRLTrainer(TrainingConfig("doors", 1_000, backbone="chat", **RUN))
