"""docs/tutorial.md: the program of each step, made from the first one by the page's own diffs, learns."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from echo_testing.ports import free_port
from echo_testing.processes import until

pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytestmark = [pytest.mark.needs("echo-samplers", "echo-tcp"), pytest.mark.timeout(300)]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
# Each process has addresses of its own: a run that was killed leaves its network behind.
NETWORK, HERE, THERE = f"echo-tutorial-{os.getpid()}", *(f"10.213.{os.getpid() % 256}.{end}" for end in (1, 2))
NEAR_END, FAR_END = f"echo-a{os.getpid()}", f"echo-b{os.getpid()}"  # of the cable; at most 15 characters


def programs() -> list[str]:
    """The program of step 1 and those that the diffs make of it. A hunk must fit at one place only."""
    [(program)] = re.findall(r"^```python title=dqn.py\n(.*?)^```$", PAGE, re.M | re.S)
    made = [program]
    for diff in re.findall(r"^```diff\n(.*?)^```$", PAGE, re.M | re.S):
        for hunk in diff.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] or "\n" for line in lines if line[0] in " -")
            after = "".join(line[1:] or "\n" for line in lines if line[0] in " +")
            if not before.strip():
                raise AssertionError(f"a hunk of the tutorial has no place: {hunk}")
            assert program.count(before) == 1, f"{program.count(before)} places for this hunk:\n{hunk}"
            program = program.replace(before, after)
        made.append(program)
    return made


def start(folder: Path, *arguments: str, inside: str = "", **environment: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", inside] if inside else []
    return subprocess.Popen(
        [*command, sys.executable, "-u", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


def finish(process: subprocess.Popen[str], seconds: float = 240) -> str:
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"did not end in {seconds:g} s:\n{process.communicate()[0]}")
    assert process.returncode == 0, output
    return output


def learned(output: str) -> float:
    return float(re.findall(r"mean return (\d+)", output)[-1])


def saved(folder: Path, step: int, target: int) -> str:
    """Write the program of a step with a nearer target, because the test of each step need not wait for the whole of it."""
    program = programs()[step - 1]
    assert program.count("target=195") == 1
    (folder / "dqn.py").write_text(program.replace("target=195", f"target={target}"))
    return "dqn.py"


def test_each_program_is_short_and_changes_little() -> None:
    made = programs()
    assert len(made) == 4
    assert all(len(program.splitlines()) <= 100 for program in made)
    for program in made:
        compile(program, "dqn.py", "exec")


def test_one_process_learns(tmp_path: Path) -> None:
    assert learned(finish(start(tmp_path, saved(tmp_path, 1, 195)))) >= 195


def test_a_learner_and_two_workers_learn_and_end(tmp_path: Path) -> None:
    program, address = saved(tmp_path, 2, 100), f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as ending:
        processes = [start(tmp_path, program, *arguments) for arguments in (("learn", address), ("work", address, "1"), ("work", address, "2"))]
        for process in processes:
            ending.callback(process.kill)
        assert learned(finish(processes[0])) >= 100
        for worker in processes[1:]:
            assert "ended the job" in finish(worker, 30)


@pytest.fixture
def other_machine() -> Iterator[str]:
    """A network namespace at the end of a virtual cable, which has its own interfaces, as another machine has."""

    def ip(*arguments: str, check: bool = True) -> None:
        subprocess.run(["ip", *arguments], check=check, capture_output=True)

    try:
        ip("netns", "add", NETWORK)
        ip("link", "add", NEAR_END, "type", "veth", "peer", "name", FAR_END, "netns", NETWORK)
        ip("addr", "add", f"{HERE}/24", "dev", NEAR_END)
        ip("link", "set", NEAR_END, "up")
        ip("-n", NETWORK, "addr", "add", f"{THERE}/24", "dev", FAR_END)
        ip("-n", NETWORK, "link", "set", FAR_END, "up")
        ip("-n", NETWORK, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        if shutil.which("ip"):
            ip("netns", "del", NETWORK, check=False)
        pytest.skip(f"no network namespaces here: {error}")
    yield NETWORK
    ip("link", "del", NEAR_END, check=False)
    ip("netns", "del", NETWORK, check=False)


def test_a_worker_on_a_second_machine_needs_the_token(tmp_path: Path, other_machine: str) -> None:
    program, port = saved(tmp_path, 2, 30), free_port()
    far, near = tmp_path / "far", tmp_path / "near"
    with ExitStack() as ending:
        learner = start(tmp_path, program, "learn", f"tcp://0.0.0.0:{port}", inside=other_machine, XDG_CONFIG_HOME=str(far))
        ending.callback(learner.kill)
        arguments = ["work", f"tcp://{THERE}:{port}", "1"]
        refused, _ = start(tmp_path, program, *arguments, XDG_CONFIG_HOME=str(near)).communicate(timeout=120)
        assert "scp -p" in refused  # the error says how to copy the learner's token
        until(lambda: (far / "echo" / "token").exists(), "the learner has made its token")
        near.joinpath("echo").mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy2(far / "echo" / "token", near / "echo" / "token")
        worker = start(tmp_path, program, *arguments, XDG_CONFIG_HOME=str(near))
        ending.callback(worker.kill)
        assert learned(finish(learner)) >= 30
        assert "ended the job" in finish(worker, 30)


def test_priorities_and_a_relay(tmp_path: Path) -> None:
    """Steps 4 and 5: the program with priorities, and a worker that takes its weights from a relay."""
    program, address, relay = saved(tmp_path, 4, 60), f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as ending:
        learner = start(tmp_path, program, "learn", address)
        ending.callback(learner.kill)
        passing_on = (
            "import sys, time; from echo_core import Server\n"
            "with Server(transport=sys.argv[2], weights_from=sys.argv[1]) as relay:\n"
            "    while not relay.stats()['weights/version']:\n        time.sleep(0.01)\n"
            "    print('ready', flush=True)\n    time.sleep(300)"
        )
        middle = start(tmp_path, "-c", passing_on, address, relay)
        ending.callback(middle.kill)
        assert middle.stdout is not None and "ready\n" in middle.stdout  # after a line about a learner that is not there yet
        worker = start(tmp_path, program, "work", address, "1", relay)
        ending.callback(worker.kill)
        assert learned(finish(learner)) >= 60
        assert "ended the job" in finish(worker, 30)
