"""The classes of unilab.ipc with tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from echo_core.base.errors import EchoTimeoutError, SpecError  # noqa: E402
from echo_ipc import ReplayBuffer, RolloutRingBuffer, SharedObsNormStats, SharedWeightSync  # noqa: E402


def test_weights_of_a_network() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    mine = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    model(torch.randn(8, 4))
    for sync in (SharedWeightSync.from_state_dict(model.state_dict()), SharedWeightSync({k: v.shape for k, v in model.state_dict().items()})):
        sync.write_weights(model.state_dict())
        sync.read_weights_into(mine.state_dict())
        assert all(torch.equal(value, mine.state_dict()[name]) for name, value in model.state_dict().items())
        sync.cleanup()


def test_parameters_that_need_gradients() -> None:
    model, mine = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    sync = SharedWeightSync.from_state_dict(dict(model.named_parameters()))
    sync.read_weights_into(dict(mine.named_parameters()))
    assert torch.equal(mine.weight, model.weight) and mine.weight.requires_grad
    sync.cleanup()


def test_bfloat16() -> None:
    state = {"w": torch.tensor([1.0, 1 / 3], dtype=torch.bfloat16)}
    native, single = SharedWeightSync.from_state_dict(state), SharedWeightSync({"w": (2,)})
    mine = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    native.read_weights_into(mine)
    assert torch.equal(mine["w"], state["w"])
    with pytest.raises(SpecError, match=r"'w' must be uint16\[2\]"):
        native.read_weights_into({"w": torch.zeros(2)})
    single.write_weights(state)
    floats = {"w": torch.zeros(2)}
    single.read_weights_into(floats)
    assert torch.equal(floats["w"], state["w"].float())
    mine["w"].zero_()
    single.read_weights_into(mine)
    assert torch.equal(mine["w"], state["w"])
    native.cleanup()
    single.cleanup()


def test_rollouts_as_tensors() -> None:
    ring = RolloutRingBuffer(4, 3, 5, 2, num_slots=2, fields={"step": ((4,), "int64")})
    with pytest.raises(EchoTimeoutError):
        ring.read_torch("cpu")
    for array in ring.write_buffer.values():
        array[...] = 7
    ring.signal_write_done()
    found = ring.read_torch("cpu")
    mine = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
    ring.copy_read_slot_to_torch(mine)
    for views in (found, mine):
        assert set(views) == set(ring.slot_shapes) and all((tensor == 7).all() for tensor in views.values())
    found["obs"].zero_()
    assert (ring.read_numpy_views()["obs"] == 7).all(), "tensors are copies"
    with pytest.raises(KeyError, match="there is no tensor for the field 'step'"):
        ring.copy_read_slot_to_torch({name: tensor for name, tensor in mine.items() if name != "step"})
    with pytest.raises(ValueError, match=r"the tensor for 'obs' has the shape \(1,\)"):
        ring.copy_read_slot_to_torch(mine | {"obs": torch.zeros(1)})
    with pytest.raises(TypeError, match=r"the tensor for 'rewards' is torch.float64"):
        ring.copy_read_slot_to_torch(mine | {"rewards": mine["rewards"].double()})
    ring.cleanup()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_transitions_as_tensors(dtype: str) -> None:
    replay = ReplayBuffer(32, 4, 2, "cpu")
    kind = getattr(torch, dtype)
    numbers = torch.arange(16, dtype=kind)
    rows = numbers[:, None]
    replay.add(rows.expand(16, 4), rows.expand(16, 2), numbers, rows.expand(16, 4), numbers > 7, numbers > 11)
    assert int(replay.size[0]) == int(replay.ptr[0]) == 16 and replay._storage.shape == (32, 2 * 4 + 2 + 3)
    batch = replay.sample(200)
    for name, tensor in batch.items():
        assert tensor.dtype is torch.float32
        wanted = {"dones": (batch["rewards"] > 7).float(), "truncated": (batch["rewards"] > 11).float()}.get(name, batch["rewards"])
        assert torch.equal(tensor, wanted if tensor.ndim == 1 else wanted[:, None].expand_as(tensor))
    replay.cleanup()


def test_draws_follow_the_seed_of_torch() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        replay = ReplayBuffer(32, 1, 1, "cpu")
        replay.add(torch.zeros(20, 1), torch.zeros(20, 1), torch.arange(20.0), torch.zeros(20, 1), torch.zeros(20), torch.zeros(20))
        found.append(replay.sample(50)["rewards"])
        replay.cleanup()
    assert torch.equal(*found)


def test_statistics_as_tensors() -> None:
    stats = SharedObsNormStats(None)
    stats.put((torch.ones(3), torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor(2, requires_grad=False)))
    mean, std, count = stats.get()
    assert torch.equal(mean, torch.ones(3)) and std.dtype is torch.bfloat16 and std.item() == 1.5 and count.shape == () and count == 2
    stats.cleanup()
