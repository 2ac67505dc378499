"""Modules of torch."""

from __future__ import annotations

import numpy as np
import pytest

from echo_es.flatten import flatten_module, load_module

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_there_and_back() -> None:
    first, second = (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2).to(torch.bfloat16)) for _ in range(2))
    theta = flatten_module(first)
    assert theta.dtype == np.float32 and theta.shape == (sum(p.numel() for p in first.parameters()),)
    theta.flags.writeable = False
    load_module(second, theta)
    for one, other in zip(first.parameters(), second.parameters()):
        assert one.dtype == other.dtype and torch.equal(one, other) and other.requires_grad
    load_module(second, theta.astype(np.float64) + 1)
    np.testing.assert_allclose(flatten_module(second)[:12], theta[:12] + 1)


def test_another_size_changes_nothing() -> None:
    module = torch.nn.Linear(3, 2)
    before = flatten_module(module)
    with pytest.raises(ValueError, match=r"must be \(8,\), not \(9,\)"):
        load_module(module, np.zeros(9))
    assert flatten_module(module).tolist() == before.tolist()
