"""An inference engine for small transformers whose requests share the keys and values of common prefixes."""

from echo_rl.engine.costs import measure
from echo_rl.engine.engine import Engine
from echo_rl.engine.model import Model, ModelConfig
from echo_rl.engine.radix import RadixIndex
from echo_rl.engine.request import Request

__all__ = ["Engine", "Model", "ModelConfig", "RadixIndex", "Request", "measure"]
