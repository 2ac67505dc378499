"""Containers of every kind, flatteners of examples, and what a spec says of a sample that does not fit."""

from __future__ import annotations

from typing import Any, NamedTuple

import optree
import pytest

from echo_core.base.errors import SpecError
from echo_core.spec.pytree.flattener import Flattener
from echo_core.spec.spec import Spec

NS = "echo-test"


class Step(NamedTuple):
    obs: Any
    reward: Any


@optree.dataclasses.dataclass(namespace="echo-test")
class Carry:
    hidden: Any
    cell: Any


def flattener(example: Any, namespace: str = "") -> Flattener:
    return Spec.from_example(example, namespace=namespace).flattener


def refusal(sample: Any, spec: Spec) -> str:
    with pytest.raises(SpecError) as caught:
        spec.check(sample)
    return str(caught.value)
