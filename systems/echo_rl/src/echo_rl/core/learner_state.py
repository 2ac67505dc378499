"""Everything that a learner changes, as named tensors and values, from which a run continues bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

LearnerState = dict[str, dict[str, Any]]
"""`"tensors"` by name, and `"values"`, which JSON can hold."""


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer, generators: Mapping[str, torch.Generator], values: dict[str, Any]) -> LearnerState:
    """Returns copies of a module's state, of an optimizer's, of the parameters that only the optimizer has, and of random states; and the values."""
    tensors = {name: tensor.detach().clone() for name, tensor in _weights(module, optimizer)}
    for number, parameter in enumerate(_parameters(optimizer)):
        tensors |= {f"optimizer.{number}.{name}": value.clone() for name, value in optimizer.state.get(parameter, {}).items()}
    tensors |= {f"random.{name}": generator.get_state() for name, generator in generators.items()}
    return {"tensors": tensors, "values": {**values, "groups": _groups(optimizer)}}


def restore_state(state: LearnerState, module: nn.Module, optimizer: torch.optim.Optimizer, generators: Mapping[str, torch.Generator]) -> None:
    """Takes over what `state_of` returned for a module and an optimizer of the same shapes.

    Raises:
        ValueError: a tensor is missing, unknown, of another shape or dtype, or not finite, or the optimizer has other groups. Nothing has changed then.
    """
    tensors, groups = state["tensors"], state["values"].get("groups", [])
    parameters, own = list(_parameters(optimizer)), dict(_weights(module, optimizer))
    mine = _groups(optimizer)
    if [(g.keys(), g["count"]) for g in mine] != [(g.keys(), g.get("count")) for g in groups]:
        raise ValueError(f"the state's optimizer has the groups {groups}, and this one {mine}")
    needed = own | {f"random.{name}": generator.get_state() for name, generator in generators.items()}
    kept: dict[int, dict[str, Tensor]] = {}
    for name in tensors:
        if name.startswith("optimizer."):
            number, _, kind = name.removeprefix("optimizer.").partition(".")
            if not number.isdecimal() or int(number) >= len(parameters):
                raise ValueError(f"the state has {name!r}, and this optimizer has {len(parameters)} parameters")
            kept.setdefault(int(number), {})[kind] = tensors[name]
            needed[name] = torch.zeros(()) if kind == "step" else parameters[int(number)].detach()
    if differ := sorted(needed.keys() ^ tensors.keys()):
        raise ValueError(f"the state's tensors are not those of this learner: {differ[0]!r} and {len(differ) - 1} others are missing or unknown")
    if len({frozenset(kinds) for kinds in kept.values()}) > 1:
        raise ValueError("the state's optimizer lacks tensors of some of its parameters")
    for name, wanted in needed.items():
        found = tensors[name]
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise ValueError(f"the state's tensor {name!r} is {found.dtype} {tuple(found.shape)}; {wanted.dtype} {tuple(wanted.shape)} is needed")
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise ValueError(f"the state's tensor {name!r} holds a number that is not finite")
    for name, generator in generators.items():
        generator.set_state(tensors[f"random.{name}"].cpu())
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
    optimizer.state.clear()
    for at, kinds in kept.items():
        # Adam keeps its count of steps on the CPU.
        device = parameters[at].device
        optimizer.state[parameters[at]] = {kind: x.detach().clone().to("cpu" if kind == "step" else device) for kind, x in kinds.items()}
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group |= {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items() if name != "count"}


def _weights(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in module.state_dict(keep_vars=True).items():
        yield f"module.{name}", tensor
    known = {id(parameter) for parameter in module.parameters()}
    for number, parameter in enumerate(_parameters(optimizer)):
        if id(parameter) not in known:
            yield f"beside.{number}", parameter


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Returns the numbers of each group, such as its learning rate, and how many parameters it has."""
    return [
        {name: list(v) if isinstance(v, tuple) else v for name, v in group.items() if name != "params"} | {"count": len(group["params"])}
        for group in optimizer.param_groups
    ]
