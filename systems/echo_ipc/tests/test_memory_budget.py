"""What is needed and what there is: the least of machine, container and file system counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from echo_ipc import Ring, memory_budget
from echo_ipc.memory_budget import (
    estimate_appo_bytes,
    estimate_offpolicy_bytes,
    get_available_memory_bytes,
    get_reservable_memory_bytes,
    get_shared_memory_available_bytes,
    raise_if_shared_memory_over_budget,
    warn_if_over_budget,
)


def test_estimates() -> None:
    replay = estimate_offpolicy_bytes(100, 1000, 10, 3, 5)
    assert replay["total"] == replay["replay_buffer"] == 100_000 * (2 * 15 + 3 + 3) * 4
    assert estimate_offpolicy_bytes(100, 1000, 10, 3, 5, ingress_depth=2)["total"] == replay["total"] + 2 * 100 * 36 * 4
    appo = estimate_appo_bytes(64, 24, 10, 3, 5, num_slots=4)
    assert appo["total"] == appo["ring_buffer"] == 6 * 64 * (24 * (15 + 3 + 4) + 15) * 4
    assert "64 environments" in appo["breakdown"]


def test_the_estimate_of_a_ring_is_what_one_takes() -> None:
    step = {"obs": 10, "critic": 5, "actions": 3, "log_probs": 1, "rewards": 1, "dones": 1, "truncated": 1}
    fields = {name: ((64, 24, width), "float32") for name, width in step.items()} | {"last_obs": ((64, 10), "float32"), "last_critic": ((64, 5), "float32")}
    with Ring(fields, 4) as ring:
        size, estimate = ring._memory.mapping.size, estimate_appo_bytes(64, 24, 10, 3, 5)["total"]
        assert estimate <= size <= estimate + 100_000


def test_there_is_some_memory() -> None:
    available, reservable = get_available_memory_bytes(), get_reservable_memory_bytes()
    assert available is not None and reservable is not None and available > 0
    shared = get_shared_memory_available_bytes()
    assert shared is None or shared >= 0
    assert get_shared_memory_available_bytes("/nowhere") is None


def cgroup(folder: Path, limit: str, usage: int, inactive: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_the_limits_of_all_cgroups_above_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "CGROUPS", tmp_path)
    cgroup(tmp_path / "a" / "b", "max", 10, 0)
    cgroup(tmp_path / "a", "5000", 1500, 500)
    cgroup(tmp_path, "9000", 8000, 0)
    left = [*memory_budget._left(tmp_path, "/a/b", "memory.max", "memory.current", "inactive_file")]
    assert left == [4000, 1000]
    # In a container, the path of the process does not exist below the mounted root.
    assert [*memory_budget._left(tmp_path, "/docker/123", "memory.max", "memory.current", "inactive_file")] == [1000]


def test_a_limit_of_file_sizes_counts() -> None:
    code = """
import resource
from echo_ipc.memory_budget import get_shared_memory_available_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
print(get_shared_memory_available_bytes())
"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "1000\n"


def test_over_budget(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    much = {"total": 10**16, "breakdown": "replay: all of it"}
    with pytest.raises(MemoryError, match=r"SAC needs 9,313,225\.7 GiB of shared memory, but / has"):
        raise_if_shared_memory_over_budget(much, "SAC", path="/")
    raise_if_shared_memory_over_budget({"total": 1}, "SAC", path="/")
    raise_if_shared_memory_over_budget(much, "SAC", path="/nowhere")
    warn_if_over_budget(much, "SAC")
    warned = capsys.readouterr().err
    assert "Warning: SAC needs about 9,313,225.7 GiB" in warned and "replay: all of it" in warned
    warn_if_over_budget({"total": 1}, "SAC")
    monkeypatch.setenv("UNILAB_SKIP_MEMORY_CHECK", "1")
    warn_if_over_budget(much, "SAC")
    assert capsys.readouterr().err == ""
