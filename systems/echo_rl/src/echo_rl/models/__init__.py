"""Language models that can be trained, computed by the same formulas as the engine's."""

from echo_rl.models.shared import SharedModel
from echo_rl.models.transformer import Scores, TrainableTransformer

__all__ = ["Scores", "SharedModel", "TrainableTransformer"]
