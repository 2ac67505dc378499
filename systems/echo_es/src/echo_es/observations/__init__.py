"""Mean and deviation of observations, over all workers of a search."""

from .statistics import ObservationStats as ObservationStats

__all__ = ["ObservationStats"]
