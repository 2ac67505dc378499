"""MiniWoB++'s pages in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echo_core import ConfigError
from echo_rl.environments import CheckedEnvironment, EnvironmentFailure, make_environment
from echo_rl.environments.adapters.browser import BROWSERS, DRIVERS
from echo_rl.environments.adapters.miniwob import ORACLES
from echo_testing.processes import until

sys.path.insert(0, str(Path(__file__).parent))
from playing import successes, trace

pytestmark = [
    pytest.mark.needs("miniwob", "selenium"),
    pytest.mark.skipif(not (any(map(shutil.which, BROWSERS)) and any(map(shutil.which, DRIVERS))), reason="there is no Chromium with its driver"),
    pytest.mark.timeout(600),
]


def browsers() -> set[int]:
    """The processes of browsers and their drivers that have not ended."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and re.search(r"chrom|chromedriver", (entry / "cmdline").read_text()):
                found.add(int(entry.name))
        except OSError:
            pass  # It has ended meanwhile.
    return found


@pytest.fixture
def made() -> Iterator[Any]:
    tasks: list[CheckedEnvironment] = []

    def make(name: str, **options: Any) -> CheckedEnvironment:
        tasks.append(make_environment(f"miniwob:{name}", **options))
        return tasks[-1]

    yield make
    for task in tasks:
        task.close()


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_the_oracle_solves_it(made: Any, name: str) -> None:
    task = made(name)
    assert successes(task, "oracle", 10) == 1.0
    assert len({task.reset(seed) for seed in range(5)}) > (name not in ("click-test", "click-test-2", "focus-text"))


def test_seeds_reproduce_in_another_browser(made: Any) -> None:
    first, second = made("click-checkboxes"), made("click-checkboxes")
    assert [trace(first, seed) for seed in (5, 6)] == [trace(second, seed) for seed in (5, 6)]


def test_what_is_seen_and_done(made: Any) -> None:
    task = made("enter-text", max_steps=6)
    seen = task.reset(3)
    said = re.search(r'Instruction: Enter "(\w+)" into the text field', seen)
    field, button = re.search(r'\[(\d+)\] input_text "" value=""', seen), re.search(r'\[(\d+)\] button "Submit"', seen)
    assert said and field and button and f'type [{field[1]}] "{said[1]}"' in task.admissible and f"click [{button[1]}]" in task.admissible
    for wrong in ("submit", "click [99]", f'type [{button[1]}] "x"', f"type [{field[1]}] x", 7):
        refused = task.step(wrong)
        assert refused.info["invalid"] and refused.reward == 0 and refused.observation == seen
    assert task.step(f"click [{field[1]}]").truncated
    task = made("enter-text")
    task.reset(3)
    assert 'value="wrong \\"ü"' in task.step(f'type [{field[1]}] "wrong \\"ü"').observation
    assert f'value="{said[1]}" (focused)' in task.step(f'type [{field[1]}] "{said[1]}"').observation  # in place of the first
    solved = task.step(f"click [{button[1]}]")
    assert solved.terminated and solved.reward == 1.0 and solved.info["success"]
    task.reset(3)
    failed = task.step(f"click [{button[1]}]")
    assert failed.terminated and failed.reward == 0 and not failed.info["success"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_page_reaches_no_server(made: Any, host: str) -> None:
    task = made("click-test")
    task.reset(0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        fetch = "return fetch(arguments[0], {mode: 'no-cors', signal: AbortSignal.timeout(2000)}).then(() => 'reached', error => String(error));"
        assert "Failed to fetch" in task.environment._browser.run(fetch, f"http://{host}:{server.getsockname()[1]}/")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_closing_leaves_no_process_and_no_file(made: Any) -> None:
    before = browsers()
    task = made("click-test")
    task.reset(0)
    folder = Path(task.environment._browser._folder)
    started = browsers() - before
    assert len(started) > 2 and folder.exists()
    task.close()
    assert not browsers() & started and not folder.exists()
    with pytest.raises(EnvironmentFailure, match="the environment is closed"):
        task.reset(0)


def test_a_killed_process_takes_its_browser_with_it() -> None:
    before = browsers()
    program = """if True:
        import sys
        from echo_rl.environments import make_environment
        task = make_environment("miniwob:click-test")
        task.reset(0)
        print(task.environment._browser._folder, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        started = browsers() - before - {process.pid}
        assert len(started) > 2 and folder.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        waiting = set(started)
        while waiting:  # the test's time limit ends this
            waiting = {pid for pid in waiting if pid in browsers()}
        while folder.exists():
            os.sched_yield()


def test_a_page_that_hangs_ends_the_browser(made: Any) -> None:
    before = browsers()
    task = made("click-test", timeout=3)
    task.reset(0)
    started = browsers() - before
    with pytest.raises(EnvironmentFailure, match="a script failed, and the browser is closed"):
        task.environment._browser.run("while (true) {}")
    until(lambda: not browsers() & started, "all its processes have ended")
    with pytest.raises(EnvironmentFailure, match="the browser has ended"):
        task.reset(0)


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("click-buttons", {}, "did you mean 'click-button'"),
        ("../core/core", {}, "there is no task"),
        ("click-test", {"browser": "/nowhere/chromium"}, "browser='/nowhere/chromium' is no program"),
        ("click-test", {"timeout": 0}, "timeout must be"),
    ],
)
def test_a_wrong_setting_is_named(name: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        make_environment(f"miniwob:{name}", **options)


def test_a_task_without_an_oracle_says_so(made: Any) -> None:
    task = made("click-shape")
    task.reset(0)
    with pytest.raises(EnvironmentFailure, match="has no oracle; these have one: click-button"):
        task.environment.solve()
