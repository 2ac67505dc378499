"""Echo measured against what one would use otherwise. Start with ``python -m benchmarks``."""
