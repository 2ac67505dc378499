"""Arguments that make no sense are refused in Echo's words, before anything is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import MinSize, Queue, RateLimiter, SampleToInsertRatio, Server, Stack, Table
from echo_core.base.errors import ConfigError, FileWriteError

EXAMPLE = {"x": np.zeros(3, np.float32)}


@pytest.mark.parametrize("limiter", [MinSize, Queue, Stack])
@pytest.mark.parametrize("count", [None, "3", 1.5, 0, True, math.nan, math.inf])
def test_counts_of_limiters(limiter: Callable[[Any], RateLimiter], count: Any) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 1"):
        limiter(count)
    assert limiter(np.int64(4)).numbers()[1:] == limiter(4.0).numbers()[1:]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((None, 1, 1.0), "samples_per_insert must be a number, not None"),
        ((True, 1, 1.0), "samples_per_insert must be a number, not True"),
        ((1.0, "a", 1.0), "min_size_to_sample must be a whole number"),
        ((1.0, 2, "x"), "error_buffer must be a number, not 'x'"),
        ((1.0, 2, (1,)), "error_buffer must be a number"),
        ((1.0, 2, (1, "x")), "max_diff must be a number, not 'x'"),
    ],
)
def test_numbers_of_limiters(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SampleToInsertRatio(*arguments)


def test_bounds_of_a_limiter_may_be_a_list() -> None:
    bounds: Any = [0, 5]  # as a configuration has them
    assert SampleToInsertRatio(1.0, 2, bounds) == SampleToInsertRatio(1.0, 2, (0, 5))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sampler": None}, "sampler must be a name"),
        ({"sampler": ["uniform"]}, "sampler must be a name"),
        ({"remover": None}, "remover must be a name"),
        ({"beta": "x"}, "beta must be from 0 to 1, not 'x'"),
        ({"beta": True}, "beta must be from 0 to 1, not True"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": "x"}, "seed must be a whole number from 0"),
        ({"storage": 3}, "storage must be the path of a new file, not 3"),
    ],
)
def test_arguments_of_a_table(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"table 't': {text}"):
        Table("t", EXAMPLE, **{"capacity": 10, "sampler": "uniform"} | arguments)


@pytest.mark.parametrize("sampler", [None, 3, ["fifo"]])
def test_the_sampler_of_a_stream(sampler: Any) -> None:
    with pytest.raises(ConfigError, match="a sampler must be a name"):
        Server(EXAMPLE, batch_size=2, sampler=sampler)


@pytest.mark.needs("echo-samplers")
def test_storage_that_does_not_fit_names_its_path_and_size(tmp_path: Path) -> None:
    frame = np.broadcast_to(np.uint8(0), 1 << 28)
    path = tmp_path / "rows"
    with pytest.raises(FileWriteError, match=r"table 't': 2\.62e\+05 GiB of storage do not fit") as caught:
        Table("t", {"frame": frame}, capacity=1 << 20, sampler="uniform", storage=path).open(2)
    assert caught.value.filename == str(path) and not path.exists()
