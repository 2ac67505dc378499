"""Language models by name: in this process, or behind an interface over HTTP.

The entry points of the group ``echo_rl.backbones`` name the adapters; only the one that is asked for is imported.
"""

from __future__ import annotations

import difflib
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
]


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
        name: One of ``NAMES`` such as ``"gpt-4o"``, or an adapter and a model such as ``"hf:/models/qwen"``, ``"local:/models/gpt2"``,
            ``"openai:gpt-4.1-mini"`` or ``"vllm:qwen"``.
        **options: The options of the adapter, for instance ``url=``, ``key=`` or ``prices=``.

    Raises:
        BackboneUnavailable: If there is no such adapter, or if it lacks a library, a folder or a key; the message names what is missing.
    """
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
