"""Clauses about identity: a sampler is found by its name, and its options are checked."""

from __future__ import annotations

import pytest

from echo_core.base.errors import ConfigError, EchoError
from echo_core.plugins import discovery
from echo_core.store.sampler import Sampler

from .keys import CAPACITY


class IdentityClauses:
    def test_it_is_found_by_its_name(self) -> None:
        sampler = self.sampler()
        assert isinstance(sampler, Sampler)
        names = [record.name for record in discovery.installed(discovery.SAMPLERS)]
        classes = []
        for name in names:
            try:
                classes.append(discovery.sampler_class(name))
            except EchoError:
                continue  # a broken plugin of another distribution
        assert type(sampler) in classes, (
            "install the plugin before its tests (pip install -e .): "
            f"none of {names} is {type(sampler).__name__}"
        )

    def test_it_says_what_it_is(self) -> None:
        sampler = self.sampler()
        assert sampler.storage in ("stream", "replay")
        assert isinstance(sampler.replacement, bool)
        if sampler.storage == "stream":
            assert sampler.capacity is None
            assert not sampler.replacement, "a stream gives every sample once"
        else:
            assert isinstance(sampler.capacity, int) and sampler.capacity >= CAPACITY

    def test_options_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="no_such_option"):
            self.sampler(no_such_option=1)
