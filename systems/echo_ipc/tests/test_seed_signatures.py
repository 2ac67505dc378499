"""Programs written for unilab.ipc call these names with these arguments; this compares every signature and default with those of its documentation."""

from __future__ import annotations

import inspect
import subprocess
import sys
from abc import ABC
from importlib import import_module
from typing import Any

import pytest

import echo_ipc

#: The signatures of the documentation. A class stands for its constructor.
SIGNATURES = {
    "SharedWeightSync": "(param_shapes, *, create=True, shm_name=None, lock=None)",
    "SharedWeightSync.from_state_dict": "(state_dict, **kwargs)",
    "SharedWeightSync.write_weights": "(state_dict)",
    "SharedWeightSync.read_weights_into": "(state_dict)",
    "SharedWeightSync.cleanup": "()",
    "SharedWeightSync.close": "()",
    "RolloutRingBuffer": "(num_envs, num_steps, obs_dim, action_dim, *, critic_dim=0, num_slots=4, create=True, shm_name_prefix=None)",
    "RolloutRingBuffer.attach_sync_primitives": "(write_ptr, read_ptr)",
    "RolloutRingBuffer.signal_write_done": "()",
    "RolloutRingBuffer.available": "()",
    "RolloutRingBuffer.wait_for_data": "(timeout=60.0)",
    "RolloutRingBuffer.read_numpy_views": "()",
    "RolloutRingBuffer.copy_read_slot_to_torch": "(destination)",
    "RolloutRingBuffer.read_torch": "(device)",
    "RolloutRingBuffer.advance_read": "()",
    "RolloutRingBuffer.cleanup": "()",
    "RolloutRingBuffer.close": "()",
    "AsyncRunner": "(env_name, env_cfg_overrides, rl_cfg, *, device=None, collector_device=None, sim_backend='mujoco', num_envs=4096)",
    "AsyncRunner.learn": "(max_iterations, save_interval=50, log_dir='logs')",
    "AsyncRunner.close": "()",
    "SharedObsNormStats": "(ctx)",
    "SharedObsNormStats.put": "(stats)",
    "SharedObsNormStats.get": "()",
    "ReplayBuffer": "(capacity, obs_dim, action_dim, device, defer_gpu=False, critic_dim=0, packed_cpu_storage=False)",
    "ReplayBuffer.add": (
        "(obs, actions, rewards, next_obs, dones, truncated, terminal_mask=None, terminal_next_obs=None, critic=None, next_critic=None, "
        "terminal_next_critic=None)"
    ),
    "ReplayBuffer.sample": "(batch_size)",
}
PROPERTIES = {
    "SharedWeightSync": ["name", "version"],
    "RolloutRingBuffer": ["name", "slot_shapes", "write_slot", "write_buffer", "read_slot"],
}
MODULES = {
    "async_runner": ["AsyncRunner", "_SPAWN_CTX"],
    "collector_error": ["ExceptionWrapper", "collector_error_guard", "create_error_pipe", "format_collector_death"],
    "memory_budget": [
        "estimate_appo_bytes",
        "estimate_offpolicy_bytes",
        "get_available_memory_bytes",
        "get_shared_memory_available_bytes",
        "raise_if_shared_memory_over_budget",
        "warn_if_over_budget",
    ],
    "replay_buffer": ["ReplayBuffer"],
    "replay_pipelines": ["CPUPinnedDoubleBufferReplayPipeline", "ReplayPipeline", "ReplayTickMetadata"],
    "rollout_ring_buffer": ["RolloutRingBuffer", "_FIELD_SHAPES"],
    "shared_buffer": ["SharedBufferBase"],
    "shared_obs_stats": ["SharedObsNormStats"],
    "weight_sync": ["SharedWeightSync"],
}


def found(name: str) -> Any:
    first, _, rest = name.partition(".")
    value = getattr(echo_ipc, first)
    return getattr(value, rest) if rest else value


def documented(text: str) -> list[inspect.Parameter]:
    made: dict[str, Any] = {}
    exec(f"def function{text}: ...", made)
    return list(inspect.signature(made["function"]).parameters.values())


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_call_of_the_seed_is_a_call_of_ours(name: str) -> None:
    """Ours may have more parameters, if nobody has to know them, and a default more."""
    theirs = documented(SIGNATURES[name])
    ours = [parameter for parameter in inspect.signature(found(name)).parameters.values() if parameter.name != "self"]
    names = [parameter.name for parameter in theirs]
    assert [parameter.name for parameter in ours if parameter.name in names] == names
    for parameter in ours:
        if parameter.name not in names:
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is not parameter.empty, parameter
            continue
        there = theirs[names.index(parameter.name)]
        assert parameter.kind is there.kind
        assert there.default is there.empty or (parameter.default == there.default and type(parameter.default) is type(there.default))


def test_properties_and_kinds() -> None:
    for cls, names in PROPERTIES.items():
        for name in names:
            assert isinstance(inspect.getattr_static(getattr(echo_ipc, cls), name), property), f"{cls}.{name}"
    assert isinstance(inspect.getattr_static(echo_ipc.SharedWeightSync, "from_state_dict"), classmethod)
    assert issubclass(echo_ipc.AsyncRunner, ABC) and "learn" in echo_ipc.AsyncRunner.__abstractmethods__
    from echo_ipc.shared_buffer import SharedBufferBase

    assert issubclass(echo_ipc.ReplayBuffer, SharedBufferBase)


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_their_names(module: str) -> None:
    place = import_module(f"echo_ipc.{module}")
    assert [name for name in MODULES[module] if not hasattr(place, name)] == []


def test_importing_every_module_imports_no_torch() -> None:
    code = f"import sys\nfor name in {list(MODULES)}: __import__(f'echo_ipc.{{name}}')\nprint('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
