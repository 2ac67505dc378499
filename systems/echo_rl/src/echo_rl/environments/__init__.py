"""Environments by name: our own, those of other libraries and machines as ``gym:ID``, ``rg:NAME``, ``miniwob:TASK`` and ``openenv:URL``, and those that
other packages and the user bring.

The entry points of the group ``echo_rl.environments`` name classes; only the one that is asked for is imported.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import typing
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from echo_core import ConfigError
from echo_rl.environments.base import CheckedEnvironment, Environment, EnvironmentFailure, Transition

GROUP = "echo_rl.environments"

__all__ = [
    "GROUP",
    "CheckedEnvironment",
    "Environment",
    "EnvironmentFailure",
    "Transition",
    "environments",
    "is_environment",
    "make_environment",
    "register_environment",
]

_registered: dict[str, Callable[..., Environment]] = {}
# Other names of environments. The shop is ours and not WebShop's, so results must name it "webshop-like" whichever name was asked for.
_ALIASES: Mapping[str, str] = {"webshop": "webshop-like"}
FORMS = "gym:ID, rg:NAME, miniwob:TASK and openenv:URL"
# What stands before a colon: the class, and its argument that takes what follows.
_ADAPTERS: Mapping[str, tuple[str, str]] = {
    "gym": ("echo_rl.environments.adapters.gym:GymEnvironment", "id"),
    "rg": ("echo_rl.environments.adapters.reasoning_gym:ReasoningGymEnvironment", "name"),
    "miniwob": ("echo_rl.environments.adapters.miniwob:MiniWoBEnvironment", "name"),
    "openenv": ("echo_rl.environments.adapters.openenv:OpenEnvEnvironment", "url"),
}


def register_environment(name: str, factory: Callable[..., Environment]) -> None:
    """Make an environment known by a name, in this process. Actors are programs of their own: ``imports`` of ``TrainingConfig`` names the modules that
    register environments there.

    Args:
        name: its name, without a colon.
        factory: called with the options that ``make_environment`` gets; it returns the environment. A class will do.

    Raises:
        ConfigError: the name is taken, is empty or has a colon, or the factory cannot be called.
    """
    if not name or ":" in name:
        raise ConfigError(f"an environment's name is a text without a colon, and {name!r} is not")
    if not callable(factory):
        raise ConfigError(f"environment {name!r}: the factory has to be callable, and {factory!r:.80} is not")
    if _registered.get(name, factory) is not factory or name in _installed() or name in _ALIASES:
        raise ConfigError(f"there is an environment {name!r} already; choose another name")
    _registered[name] = factory


def environments() -> list[str]:
    """The names of all environments that can be made, without those that have a colon."""
    return sorted({*_registered, *_installed()})


def is_environment(name: str) -> bool:
    """Whether ``make_environment`` knows a name. What it needs may still be missing."""
    adapter, colon, rest = name.partition(":")
    return bool(colon and rest and adapter in _ADAPTERS) or name in _ALIASES or name in environments()


def make_environment(name: str, **options: Any) -> CheckedEnvironment:
    """Make an environment.

    Args:
        name: such as ``"digits"``, ``"gym:CartPole-v1"``, ``"rg:chain_sum"``, ``"openenv:http://127.0.0.1:8000"``, or what ``register_environment`` was given.
        options: of the environment. If its constructor takes one ``config``, a dataclass, they are the fields of this config.

    Raises:
        ConfigError: there is no such environment, and the message says which there are and what brings it; or an option is wrong.
    """
    adapter, colon, rest = name.partition(":")
    if colon and adapter in _ADAPTERS:
        (module, kind), argument = _ADAPTERS[adapter][0].split(":"), _ADAPTERS[adapter][1]
        if argument in options:
            raise ConfigError(f"environment {name!r} has its {argument} in its name; leave the option {argument} out")
        return CheckedEnvironment(_made(name, getattr(importlib.import_module(module), kind), {argument: rest, **options}), name)
    name = name if name in _registered else _ALIASES.get(name, name)
    return CheckedEnvironment(_made(name, _registered.get(name) or _loaded(name), options), name)


@cache  # to look through everything that is installed takes longer than to make most environments
def _loaded(name: str) -> Callable[..., Environment]:
    entry = _installed().get(name)
    if entry is None:
        raise ConfigError(_unknown(name))
    factory: Callable[..., Environment] = entry.load()
    return factory


def _made(name: str, factory: Callable[..., Environment], options: dict[str, Any]) -> Environment:
    try:
        config = _config_type(factory)
        if config is None:
            return factory(**options)
        unknown = options.keys() - {field.name for field in dataclasses.fields(config)}
        if unknown:
            known = ", ".join(field.name for field in dataclasses.fields(config))
            raise ConfigError(f"environment {name!r} has no option {', '.join(sorted(unknown))}; its options are {known}")
        return factory(config(**options))
    except TypeError as error:
        raise ConfigError(f"environment {name!r} cannot be made with {options}: {error}") from error


def _config_type(factory: Callable[..., Environment]) -> Any:
    """The dataclass that is the factory's only argument, ``config``; None if it is made in another way."""
    if not isinstance(factory, type):
        return None
    constructor: Any = vars(factory).get("__init__")
    if constructor is None:
        return None
    hints = typing.get_type_hints(constructor)
    for kind in (hints.get("config"), *typing.get_args(hints.get("config"))):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    return None


def _installed() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _unknown(name: str) -> str:
    there = ", ".join(environments())
    close = difflib.get_close_matches(name, environments(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"there is no environment {name!r}{hint} There are: {there}, {FORMS}"
