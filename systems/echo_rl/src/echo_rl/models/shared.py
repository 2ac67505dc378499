"""A trainable model's parameters in an engine of the same process, without a copy."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from echo_rl.engine.families import FAMILIES
from echo_rl.engine.linear import PlainLinear
from echo_rl.engine.model import Model
from echo_rl.models.transformer import TrainableTransformer


class SharedModel(Model):
    """The parameters of a trainable model, for an ``Engine``.

        engine = Engine(SharedModel(learner.model), version=learner.version)
        learner.update(batch)
        engine.submit(prompt, 16)       # The next step computes with the new weights, as version 1. No key or value of the old ones is used.

    The weights are in memory once, in the module. After a change, the engine counts its version on by 1 at its next step, however many changes there
    were; ``engine.update_weights(shared, version)`` gives the version a number of its own. Seen are the steps of PyTorch's optimisers, what PyTorch
    counts as a change in place, such as ``load_state_dict`` and ``copy_`` under ``no_grad``, and parameters that were replaced. A write into the memory
    of ``parameter.data`` is not seen: call ``update_weights`` after it.

    No training step may run beside a step of the engine; a change during one is an error there. On a CPU, plain products take about twice the time of
    the packed copies that ``Model`` makes, so a program that generates much more than it trains is faster with ``update_weights(module.weights(), version)``.

    Args:
        module: The trainable model. Its parameters must be float32.

    Raises:
        ValueError: A parameter is not float32, not finite, of another shape, on another device than the others, or was made under ``inference_mode``.
    """

    def __init__(self, module: TrainableTransformer) -> None:
        self.module, self.config, self.generation, self.device = module, module.config, module.generation, module.device
        # The dictionary of each parameter's own module: it is looked up at every step, and a parameter that was replaced is found.
        self._places = {name: (module.get_submodule(name.rpartition(".")[0])._parameters, name.rpartition(".")[2]) for name in module.names}
        self._shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self._seen: dict[str, tuple[nn.Parameter, int, int]] = {}
        self._count, self._steps, self._known_steps = -1, 0, 0
        self.changes()
        _watch(self)

    def stepped(self, parameters: set[int]) -> None:
        """Count a step of an optimiser that has the parameters with these ids. PyTorch itself does not count the changes of fused optimisers."""
        self._steps += any(id(mark[0]) in parameters for mark in self._seen.values())

    def changes(self) -> int:
        """Return how often the parameters were found changed. Raise ValueError, which names the parameter, for one that the engine cannot use."""
        now = {name: _mark(name, place[last]) for name, (place, last) in self._places.items()}
        steps = self._steps
        changed = [name for name, mark in now.items() if steps != self._known_steps or not _same(mark, self._seen.get(name))]
        if changed:
            for name in changed:
                self._check(name, now[name][0])
            parameters = {name: mark[0] for name, mark in now.items()}
            self._blocks = FAMILIES[self.config.kind].Blocks(self.config, parameters, PlainLinear)
            self.embedding, self._head = self._blocks.embedding, PlainLinear(parameters[self.module.head])
            self._seen, self._known_steps = now, steps
            self._count += 1
        return self._count

    @property
    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights; see ``Model.weights``."""
        return self.module.weights()

    def _check(self, name: str, parameter: nn.Parameter) -> None:
        if parameter.dtype != torch.float32 or parameter.shape != self._shapes[name] or parameter.device != self.device:
            raise ValueError(
                f"the shared weight {name!r} is {parameter.dtype} of the shape {tuple(parameter.shape)} on {parameter.device}; "
                f"the engine needs torch.float32 of the shape {tuple(self._shapes[name])} on {self.device}"
            )
        if not torch.isfinite(parameter).all():
            raise ValueError(f"the shared weight {name!r} holds a number that is not finite")


def _mark(name: str, parameter: nn.Parameter | None) -> tuple[nn.Parameter, int, int]:
    if parameter is None or parameter.is_inference():
        raise ValueError(f"the shared weight {name!r} is missing, or was made under inference_mode, where PyTorch does not count changes")
    changes = getattr(parameter, "_version")  # noqa: B009  PyTorch counts changes in place; core has a private name like this
    return parameter, parameter.data_ptr(), int(changes)


def _same(mark: tuple[nn.Parameter, int, int], before: tuple[nn.Parameter, int, int] | None) -> bool:
    return before is not None and mark[0] is before[0] and mark[1:] == before[1:]


_watching: WeakSet[SharedModel] = WeakSet()
_hooks: list[RemovableHandle] = []


def _watch(shared: SharedModel) -> None:
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_stepped))
    _watching.add(shared)


def _stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
    parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for shared in list(_watching):
        shared.stepped(parameters)
