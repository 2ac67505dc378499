"""Clauses about mismatches: both ends refuse them and name the leaf, and everything else goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

from echo_core.base.errors import SpecError

from ..rig import PATIENCE, Rig

TREE = {"obs": {"pos": np.zeros(4, np.float32)}, "reward": np.zeros((), np.float32)}

# Trees that differ from TREE, and the leaf that an error must name.
OTHERS: dict[str, tuple[Any, str]] = {
    "other dtype": ({"obs": {"pos": np.zeros(4, np.int32)}, "reward": TREE["reward"]}, "pos"),
    "wider dtype": ({"obs": {"pos": np.zeros(4)}, "reward": TREE["reward"]}, "pos"),
    "other key": ({"obs": {"speed": np.zeros(4, np.float32)}, "reward": TREE["reward"]}, "pos"),
    "missing key": ({"obs": TREE["obs"]}, "reward"),
    "one key more": ({**TREE, "done": np.zeros((), np.bool_)}, "done"),
    "same bytes": (
        {"obs": {"pos": np.zeros((2, 2), np.float32)}, "reward": TREE["reward"]},
        "pos",
    ),
}


class OnDevice:
    """A stand-in for a library's array in a GPU's memory. The processor must not read its address."""

    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (16, False), "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


class RefusalClauses:
    @pytest.mark.parametrize("case", OTHERS)
    def test_another_spec_is_refused_when_connecting(self, rig: Rig, case: str) -> None:
        other, leaf = OTHERS[case]
        server = rig.server(TREE, batch_size=2)
        good = rig.client(server, TREE)
        with pytest.raises(SpecError, match=leaf):
            rig.client(server, other)
        good.send_batch(optree.tree_map(lambda x: np.stack([x, x]), TREE))
        assert server.sample(timeout=PATIENCE).info.samples_inserted_total == 2

    @pytest.mark.parametrize("case", OTHERS)
    def test_another_sample_is_refused_when_sending(self, rig: Rig, case: str) -> None:
        other, leaf = OTHERS[case]
        server = rig.server(TREE, batch_size=3)
        client = rig.client(server, TREE)
        client.send(TREE)
        with pytest.raises(SpecError, match=leaf):
            client.send(other)
        with pytest.raises(SpecError, match=leaf):
            client.send_batch(optree.tree_map(lambda x: np.stack([x, x]), other))
        client.send_batch(optree.tree_map(lambda x: np.stack([x + 1, x + 2]), TREE))
        batch, info = server.sample(timeout=PATIENCE)
        assert batch["reward"].tolist() == [0, 1, 2]
        assert info.samples_inserted_total == 3
        assert client.stats()["samples"] == 3

    def test_an_array_in_the_memory_of_a_device_is_refused_when_sending(self, rig: Rig) -> None:
        server = rig.server(TREE, batch_size=2)
        client = rig.client(server, TREE)
        there = {**TREE, "obs": {"pos": OnDevice()}}
        for send in (client.send, client.send_batch):
            with pytest.raises(SpecError, match=r"pos.*CUDA device 1.*to the host"):
                send(there)
        client.send_batch(optree.tree_map(lambda x: np.stack([x, x]), TREE))
        assert server.sample(timeout=PATIENCE).info.samples_inserted_total == 2

    def test_the_leaves_of_a_batch_must_agree_how_many_there_are(self, rig: Rig) -> None:
        server = rig.server(TREE)
        client = rig.client(server, TREE)
        with pytest.raises(SpecError, match="reward"):
            client.send_batch(
                {"obs": {"pos": np.zeros((4, 4), np.float32)}, "reward": np.zeros(3, np.float32)}
            )
        client.wait()
        assert server.stats()["store/samples_inserted_total"] == 0
