"""Language models by name: in this process, or behind an interface over HTTP.

The entry points of the group ``echo_rl.backbones`` name the adapters; only the one that is asked for is imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from echo_rl.backbones.base import Backbone, BackboneError, BackboneUnavailable, Completion, CompletionRequest, Prompt, Usage
from echo_rl.backbones.names import NAMES
from echo_rl.backbones.prices import Prices

GROUP = "echo_rl.backbones"

__all__ = [
    "GROUP",
    "NAMES",
    "Backbone",
    "BackboneError",
    "BackboneUnavailable",
    "Completion",
    "CompletionRequest",
    "Prices",
    "Prompt",
    "Usage",
    "adapters",
    "backbone",
    "is_known",
    "register_backbone",
]

_registered: dict[str, Callable[..., Backbone]] = {}


def register_backbone(name: str, factory: Callable[..., Backbone]) -> None:
    """Make a backbone known by a name, in this process.

    Args:
        name: Its name, without a colon.
        factory: Called with the options that ``backbone`` gets. It returns the backbone, or raises BackboneUnavailable.

    Raises:
        ValueError: If the name is taken, is empty or has a colon, or if the factory cannot be called.
    """
    if not name or ":" in name:
        raise ValueError(f"a backbone's name is a text without a colon, and {name!r} is not")
    if not callable(factory):
        raise ValueError(f"backbone {name!r}: the factory has to be callable, and {factory!r:.80} is not")
    if _registered.get(name, factory) is not factory or name in NAMES or name in adapters():
        raise ValueError(f"there is a backbone {name!r} already; choose another name")
    _registered[name] = factory


def is_known(name: str) -> bool:
    """Whether ``backbone`` knows the name, although a key or a library may be missing."""
    return name in _registered or name in NAMES or (":" in name and name.partition(":")[0] in adapters())


def adapters() -> dict[str, EntryPoint]:
    """Return the installed adapters by name. None of them is imported.

    Raise BackboneUnavailable if two distributions provide the same name, since either could be meant.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise BackboneUnavailable(f"backbone {entry.name!r} is provided twice, as {other.value} and {entry.value}; uninstall one")
    return found


def backbone(name: str, **options: Any) -> Backbone:
    """Return a backbone.

    Args:
        name: One of ``NAMES`` such as ``"gpt-4o"``, a name that ``register_backbone`` was given, or an adapter and a model such as
            ``"hf:/models/qwen"``, ``"local:/models/gpt2"``, ``"openai:gpt-4.1-mini"`` or ``"vllm:qwen"``.
        **options: The options of the adapter, for instance ``url=``, ``key=`` or ``prices=``.

    Raises:
        BackboneUnavailable: If there is no such adapter, or if it lacks a library, a folder or a key; the message names what is missing.
    """
    if name in _registered:
        return _registered[name](**options)
    known = NAMES.get(name)
    adapter, _, model = (known.adapter, "", known.model) if known else name.partition(":")
    installed = adapters()
    if adapter in installed and not model:
        raise BackboneUnavailable(f"backbone {name!r} names no model; write {adapter}:MODEL")
    if adapter not in installed:
        close = difflib.get_close_matches(name, NAMES, n=1) or difflib.get_close_matches(adapter, installed, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise BackboneUnavailable(f"no backbone {name!r}: use one of {', '.join(NAMES)}, or ADAPTER:MODEL with {', '.join(sorted(installed))}{hint}")
    if known:
        options = {"variable": known.variable, **known.options, **options}
    found: Backbone = installed[adapter].load()(model, name=name, **options)
    return found
