"""Echo measured against the systems one would otherwise use. Start with ``python -m benchmarks``."""
