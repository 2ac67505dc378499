"""Evolution strategies over any transport of Echo."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. Importing this package imports none of them.
_HOME = {
    "CMAES": "strategies.cma_es",
    "ESServer": "server",
    "Eval": "workers.evaluation",
    "Evosax": "strategies.evosax",
    "Experiment": "experiments.experiment",
    "OpenAIES": "strategies.openai_es",
    "PGPE": "strategies.pgpe",
    "SepCMAES": "strategies.sep_cma_es",
    "SharedObservations": "observations.shared",
    "Strategy": "strategies.base",
    "Worker": "workers.worker",
    "cancelled": "workers.cancelling",
    "run_worker": "workers.run_worker",
    "start_workers": "workers.launched",
}

if TYPE_CHECKING:
    from .experiments.experiment import Experiment as Experiment
    from .observations.shared import SharedObservations as SharedObservations
    from .server import ESServer as ESServer
    from .strategies.base import Strategy as Strategy
    from .strategies.cma_es import CMAES as CMAES
    from .strategies.evosax import Evosax as Evosax
    from .strategies.openai_es import OpenAIES as OpenAIES
    from .strategies.pgpe import PGPE as PGPE
    from .strategies.sep_cma_es import SepCMAES as SepCMAES
    from .workers.cancelling import cancelled as cancelled
    from .workers.evaluation import Eval as Eval
    from .workers.launched import start_workers as start_workers
    from .workers.run_worker import run_worker as run_worker
    from .workers.worker import Worker as Worker

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
