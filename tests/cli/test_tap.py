"""How `echoctl tap` writes numbers: all of them as JSON, few or their range for people."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("click")

from echo_core import Spec
from echo_core.client.observer import Look
from echoctl.commands.tap import plain, render, values
from echoctl.output import console, table


def test_what_json_has_no_number_for_is_text() -> None:
    tree = {
        "f": np.array([1.5, np.inf, np.nan]),
        "c": np.complex64(1 + 2j)[...],
        "b": np.array([True, False]),
        "s": np.array([b"ab\xff", b""]),
        "u": np.array("é"),
        "t": np.array("2024-05-06T07", "datetime64[h]"),
        "r": np.zeros((), [("x", "i4"), ("y", "f8")]),
        "n": (np.int64(2**62)[...], None, [np.zeros((0, 2))]),
    }
    assert json.loads(json.dumps(plain(tree), allow_nan=False)) == {
        "f": [1.5, "inf", "nan"],
        "c": [1.0, 2.0],
        "b": [True, False],
        "s": ["ab\\xff", ""],
        "u": "é",
        "t": "2024-05-06T07",
        "r": [0, 0.0],
        "n": [2**62, None, [[]]],
    }


def test_numbers_of_other_libraries_are_numbers() -> None:
    types = pytest.importorskip("ml_dtypes")
    assert plain(np.array([1.5, -2], types.bfloat16)) == [1.5, -2.0]
    assert values(np.array([1.5, -2], types.bfloat16)) == "1.5 -2"


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (np.float32(0.1)[...], "0.1"),
        (np.arange(8).reshape(2, 4), "0 1 2 3 4 5 6 7"),
        (np.arange(9, dtype=np.uint8), "0 1 2 3 ...  from 0 to 8, mean 4"),
        (np.array([np.nan, *range(9)]), "nan 0 1 2 ...  from 0 to 8, mean 4, 1 not finite"),
        (np.full(9, np.inf), "inf inf inf inf ...  no finite number, 9 not finite"),
        (np.zeros((3, 0)), "(empty)"),
        (np.array(["a"] * 9), "a a a a ..."),
    ],
)
def test_many_numbers_are_shown_by_their_range(array: np.ndarray, shown: str) -> None:
    assert values(array) == shown


def test_words_of_strangers_do_not_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x07x\nforged"
    spec = Spec.from_example({evil: np.array(evil)})
    console().print(render(Look(spec=spec, leaves=[np.array([evil])], samples=[{evil: evil}], keys=None, rows=[[np.array(evil)]])))
    table(["name"], [[evil]])
    text = capsys.readouterr().out
    assert "\x1b" not in text and "\x07" not in text
    assert not any(line.startswith("forged") for line in text.splitlines())
