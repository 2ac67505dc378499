"""Tests Fifo over the keys of a stream, against the sampler contract and the simplest possible model."""

from __future__ import annotations

import pickle
from importlib import import_module
from importlib.metadata import distribution

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from echo_core.base.errors import ConfigError, DuplicateKeyError, UnknownKeyError
from echo_core.plugins.discovery import sampler_class
from echo_core.plugins.hookspecs import SamplerInfo
from echo_core.store.sampler import Sampler
from echo_samplers import echo_samplers
from echo_samplers.fifo import Fifo

RNG = np.random.default_rng(0)


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def filled(*values: int) -> Fifo:
    fifo = Fifo()
    fifo.insert(keys(*values))
    return fifo


def held(fifo: Fifo) -> list[int]:
    return fifo.sample(len(fifo), RNG)[0].tolist() if len(fifo) else []


def test_the_oldest_come_first_with_certainty() -> None:
    fifo = filled(5, 3, 9)
    drawn, probabilities = fifo.sample(2, RNG)
    assert drawn.dtype == np.uint64
    assert drawn.tolist() == [5, 3]
    assert probabilities.dtype == np.float64
    assert probabilities.tolist() == [1.0, 1.0]
    assert fifo.sample(2, RNG)[0].tolist() == [5, 3], "drawing changes nothing"
    fifo.delete(drawn)
    assert held(fifo) == [9]


def test_randomness_is_left_alone() -> None:
    rng = np.random.default_rng(1)
    before = rng.bit_generator.state
    filled(1, 2).sample(2, rng)
    assert rng.bit_generator.state == before


def test_keys_of_64_bits_survive() -> None:
    top = 2**64 - 1
    fifo = filled(top, 2**63, 0)
    assert held(fifo) == [top, 2**63, 0]
    assert fifo.state()["keys"].tolist() == [top, 2**63, 0]


def test_empty_calls() -> None:
    fifo = filled()
    fifo.insert(keys())
    fifo.delete(keys())
    fifo.update(keys(), np.empty(0))
    assert len(fifo) == 0


@pytest.mark.parametrize("n", [0, -1, 4])
def test_more_or_less_than_there_is(n: int) -> None:
    with pytest.raises(ValueError, match=f"{n} keys were requested, but from 1 to 3"):
        filled(1, 2, 3).sample(n, RNG)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda f: f.insert(keys(4, 2)), DuplicateKeyError, "key 2 is held already"),
        (lambda f: f.insert(keys(4, 5, 4)), DuplicateKeyError, "key 4 occurs twice"),
        (lambda f: f.delete(keys(1, 8)), UnknownKeyError, "key 8 is not held"),
        (lambda f: f.delete(keys(1, 1)), UnknownKeyError, "key 1 occurs twice"),
        (lambda f: f.update(keys(1, 8), np.ones(2)), UnknownKeyError, "key 8 is not held"),
        (lambda f: f.update(keys(1), np.ones(2)), ValueError, "1 keys need priorities"),
        (lambda f: f.update(keys(1), [np.nan]), ValueError, "nan of key 1"),
        (lambda f: f.insert(keys(4), [-1.0]), ValueError, "-1.0 of key 4"),
        (lambda f: f.insert(np.array([4.0])), TypeError, "float64"),
        (lambda f: f.insert(np.array([4, -4])), ValueError, "key -4 is negative"),
        (lambda f: f.insert(np.array([[4]])), ValueError, "one dimension"),
        (lambda f: f.restore({}), ValueError, "'keys'"),
        (lambda f: f.restore({"keys": keys(1), "x": keys()}), ValueError, "'x'"),
        (lambda f: f.restore({"keys": keys(1, 1)}), ValueError, "twice"),
    ],
)
def test_a_call_that_raises_has_changed_nothing(call, error: type[Exception], said: str) -> None:
    fifo = filled(1, 2, 3)
    with pytest.raises(error) as caught:
        call(fifo)
    assert said in str(caught.value)
    assert held(fifo) == [1, 2, 3]


def test_errors_are_also_the_builtin_ones() -> None:
    with pytest.raises(KeyError) as unknown:
        filled().delete(keys(7))
    assert not str(unknown.value).startswith("'")
    assert str(pickle.loads(pickle.dumps(unknown.value))) == str(unknown.value)


def test_updating_checks_and_keeps_the_order() -> None:
    fifo = filled(1, 2, 3)
    fifo.update(keys(3, 3, 1), np.array([9.0, 8.0, 0.0]))
    assert held(fifo) == [1, 2, 3]


def test_state_is_a_copy_of_plain_arrays() -> None:
    fifo = filled(4, 1)
    state = fifo.state()
    fifo.delete(keys(4))
    again = Fifo()
    again.insert(keys(77))
    again.restore(state)
    assert held(again) == [4, 1]
    assert all(array.dtype != object for array in state.values())


def test_a_capacity_makes_it_the_sampler_of_a_table() -> None:
    with pytest.raises(ConfigError, match=r"Fifo\.size: unknown key"):
        Fifo(size=3)
    with pytest.raises(ConfigError, match="capacity must be from 1"):
        Fifo(capacity=0)
    assert Fifo().capacity is None
    assert (Fifo.storage, Fifo.replacement, Fifo().native()) == ("stream", False, None)
    table = Fifo(capacity=3)
    assert (table.storage, table.replacement, table.capacity) == ("replay", False, 3)
    assert table.native() is not None
    with pytest.raises(ValueError, match="key 3 is not a row of a table of 3; keys go from 0 to 2"):
        table.insert(keys(0, 3))
    assert len(table) == 0


@pytest.mark.parametrize("info", echo_samplers(), ids=lambda info: info.name)
def test_a_description_names_what_is_there(info: SamplerInfo) -> None:
    module, _, name = info.factory.partition(":")
    cls = getattr(import_module(module), name)
    assert issubclass(cls, Sampler)
    assert info.summary and info.api == 1


@pytest.mark.needs("echo-samplers")
def test_the_installed_distribution_offers_them() -> None:
    offered = {entry.name for entry in distribution("echo-samplers").entry_points}
    assert offered == {info.name for info in echo_samplers()}
    assert sampler_class("fifo") is Fifo


class AgainstAList(RuleBasedStateMachine):
    """Compares a Fifo with a list in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.fifo = Fifo()
        self.model: list[int] = []
        self.next = 0

    @rule(n=st.integers(0, 9))
    def insert(self, n: int) -> None:
        new = list(range(self.next, self.next + n))
        self.next += n
        self.fifo.insert(keys(*new))
        self.model += new

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(self.model), unique=True))
        self.fifo.delete(keys(*gone))
        self.model = [key for key in self.model if key not in gone]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def draw_and_delete(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(1, len(self.model)))
        drawn, _ = self.fifo.sample(n, RNG)
        assert drawn.tolist() == self.model[:n]
        self.fifo.delete(drawn)
        self.model = self.model[n:]

    @rule()
    def checkpoint(self) -> None:
        state = self.fifo.state()
        self.fifo = Fifo()
        self.fifo.restore(state)

    @invariant()
    def same(self) -> None:
        assert len(self.fifo) == len(self.model)
        assert held(self.fifo) == self.model


TestAgainstAList = AgainstAList.TestCase
