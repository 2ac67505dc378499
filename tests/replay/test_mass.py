"""Tests what a batch tells about its draw: the mass that the probabilities divide by, also to another process."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core import Client, Server, Table
from echo_replay.steps.items import Slices

pytestmark = pytest.mark.needs("echo-samplers", "echo-tcp")

EXAMPLE = np.zeros(2, np.float32)
EXACT = {"type": "prioritized", "alpha": 1.0, "eps": 0.0}


def served(*tables: Table) -> Server:
    return Server(tables=list(tables), batch_size=4, transport="tcp://127.0.0.1:0")


def test_a_remote_batch_has_the_mass_it_was_drawn_from() -> None:
    with served(Table("t", EXAMPLE, capacity=100, sampler=EXACT)) as server, Client(server.address, EXAMPLE, table="t") as client:
        keys = [server.tables["t"].submit(np.full(2, i, np.float32), priority=float(i)) for i in range(1, 5)]
        first = client.sample(4)
        assert first.info.mass == 10.0
        np.testing.assert_allclose(first.probabilities * first.info.mass, first.batch[:, 0])
        assert server.stats()["table/t/mass"] == 10.0
        client.update_priorities(keys[3:], [14.0])
        assert client.sample(4).info.mass == server.tables["t"].sample(4).info.mass == 20.0


@pytest.mark.parametrize(("sampler", "mass"), [("uniform", 6.0), ("fifo", None), ("lifo", None), ("max_heap", None), ("hot_cold", None)])
def test_samplers_without_weights_have_a_count_or_none(sampler: str, mass: float | None) -> None:
    with served(Table("t", EXAMPLE, capacity=100, sampler=sampler)) as server, Client(server.address, EXAMPLE, table="t") as client:
        for i in range(6):
            server.tables["t"].submit(np.full(2, i, np.float32))
        assert client.sample(4).info.mass == server.tables["t"].sample(4).info.mass == server.tables["t"].mass() == mass
        assert server.stats().get("table/t/mass") == mass


def test_a_sampler_in_python_tells_its_mass_too() -> None:
    from echo_samplers.prioritized import Prioritized

    class InPython(Prioritized):
        """A sampler that a table calls only through its Python methods."""

        def native(self) -> None:
            return None

    with served(Table("t", EXAMPLE, capacity=100, sampler=InPython(capacity=100, alpha=1.0, eps=0.0))) as server, Client(server.address, EXAMPLE) as client:
        for i in range(1, 5):
            server.tables["t"].submit(np.full(2, i, np.float32), priority=float(i))
        drawn = client.sample(4)
        assert drawn.info.mass == server.tables["t"].sample(4).info.mass == 10.0
        np.testing.assert_allclose(drawn.probabilities * 10.0, drawn.batch[:, 0])


def test_two_tables_draw_like_one_with_their_masses() -> None:
    """Weighted means over two tables of very different priorities are the mean of all items."""
    rng = np.random.default_rng(5)
    tables = [Table(name, EXAMPLE, capacity=1000, sampler=EXACT, seed=i) for i, name in enumerate("ab")]
    with served(*tables) as server:
        truth = []
        for name, size, scale in (("a", 300, 1.0), ("b", 600, 9.0)):
            values = rng.random(size).astype(np.float32) * scale
            truth.extend(values.tolist())
            server.tables[name].submit_batch(np.stack([values, values], axis=1), priorities=scale * (0.1 + rng.random(size)))
        masses = {name: server.tables[name].mass() for name in "ab"}
        shares = {name: mass / sum(masses.values()) for name, mass in masses.items()}
        means = []
        for name in rng.choice(list("ab"), 3000, p=[shares["a"], shares["b"]]):
            drawn = server.tables[name].sample(16)
            assert drawn.info.mass == masses[name]
            means.append((drawn.batch[:, 0] / (len(truth) * shares[name] * drawn.probabilities)).mean())
        error = np.std(means) / len(means) ** 0.5
        assert abs(np.mean(means) - np.mean(truth)) < 5 * error < 0.2


@pytest.mark.parametrize(("by", "mass"), [("episodes", 2.0), ("steps", 8.0)])
def test_the_mass_of_slices_counts_what_is_equally_likely(by: str, mass: float) -> None:
    table = Table("t", EXAMPLE, capacity=100, sampler="uniform", items=Slices(3, by=by))
    with served(table) as server:
        writer = server.tables["t"].writer()
        for length in (4, 8):  # 2 and 6 slices of 3 steps
            for step in range(length):
                writer.send(np.full(2, step, np.float32), end="terminated" if step == length - 1 else None)
        drawn = server.tables["t"].sample(4)
        assert drawn.info.mass == server.tables["t"].mass() == mass
        if by == "steps":
            np.testing.assert_allclose(drawn.probabilities, 1 / mass)
