"""The threads of calls that may hang: they end with ``close``, and one that hangs is named."""

from __future__ import annotations

import gc
import logging
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from echo_rl.rollouts.timed_calls import TimedCalls

NAME = "echo-rl-environment"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


class Heavy:
    """What an environment or a policy may be."""

    def step(self) -> threading.Thread:
        return threading.current_thread()


def test_no_thread_outlives_close() -> None:
    for _ in range(20):
        calls, last = TimedCalls(60.0), list[str]()
        (thread,) = calls.each([Heavy().step], ["step"])
        assert thread in threads()
        calls.close([lambda last=last: last.append(threading.current_thread().name)], ["close"])
        assert last == [NAME] and not thread.is_alive(), "the environment is closed in the thread that has used it"
    calls.close()
    assert not threads()


def test_a_thread_that_waits_refers_to_nothing_of_the_last_round() -> None:
    calls, heavy, freed = TimedCalls(60.0), Heavy(), threading.Event()
    weakref.finalize(heavy, freed.set)
    calls.each([heavy.step], ["step"])
    del heavy
    gc.collect()
    assert freed.wait(60), "the waiting thread keeps the environment in memory"
    calls.close()


def test_close_names_the_call_that_hangs_and_returns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_rl.rollouts.timed_calls._END", 0.1)
    calls, release = TimedCalls(0.1), threading.Event()
    calls.each([release.wait], ["environment shop: step('buy')"])
    with caplog.at_level(logging.WARNING, "echo.rl"):
        calls.close([release.wait], ["environment shop: close()"])
    hanging = threads()
    for what in ("environment shop: step('buy')", "environment shop: close()"):
        assert f"{what} still hangs, and its thread is left alone until the process ends" in caplog.text
    release.set()
    for thread in hanging:
        thread.join()


def test_close_raises_the_error_of_a_last_call_after_the_others_are_made() -> None:
    calls, made = TimedCalls(60.0), list[int]()
    with pytest.raises(ZeroDivisionError):
        calls.close([lambda: 1 / 0, lambda: made.append(1)], ["one", "two"])
    assert made == [1] and not threads()


def test_an_interrupted_round_makes_no_more_calls() -> None:
    calls, begun, release, made = TimedCalls(60.0), threading.Event(), threading.Event(), list[int]()

    def hang() -> None:
        begun.set()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        release.wait()

    with pytest.raises(KeyboardInterrupt):
        calls.each([hang, lambda: made.append(1)], ["one", "two"])
    assert begun.is_set()
    release.set()
    calls.close()
    assert made == [] and not threads()


@pytest.mark.parametrize("program", ["environments", "engine", "transformers"])
def test_a_program_may_end_at_any_moment(program: str, tmp_path: Path) -> None:
    """With a thread in torch at its end, the interpreter would abort the process."""
    if program == "transformers":
        pytest.importorskip("transformers", reason="transformers is not installed")
    text = {"environments": ENVIRONMENTS, "engine": ENGINE, "transformers": TRANSFORMERS}[program]
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr[-2000:]


ENVIRONMENTS = """
import torch
from echo_rl.rollouts.timed_calls import TimedCalls

class Policy:
    def __init__(self):
        self.model = torch.nn.TransformerEncoderLayer(16, 2, 32)
    def step(self):
        pass

all = [TimedCalls(60.0) for _ in range(50)]
for calls in all:
    calls.each([Policy().step], ["step"])
for calls in all:
    calls.close()
print("the end")
"""

ENGINE = """
from echo_rl.backbones.local import LocalBackbone
from echo_rl.engine import Engine, Model, ModelConfig

config = ModelConfig("gpt2", vocab=260, layers=2, heads=4, width=32, inner=64, context=4096)
pieces = LocalBackbone(Engine(Model.random(config, scale=0.3), slots=8, room=4000, seed=3)).stream("abc", max_tokens=3900)
next(pieces)
print("the end")
"""

TRANSFORMERS = """
import sys
import transformers
from echo_rl.backbones import backbone

transformers.utils.logging.disable_progress_bar()
config = transformers.GPT2Config(vocab_size=260, n_positions=2048, n_embd=32, n_layer=2, n_head=4, eos_token_id=None, bos_token_id=None)
transformers.GPT2LMHeadModel(config).save_pretrained(sys.argv[1])
pieces = backbone(f"hf:{sys.argv[1]}", four_bit=False).stream("abcd", max_tokens=1800)
next(pieces)
print("the end")
"""
