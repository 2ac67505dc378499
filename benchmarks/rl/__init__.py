"""Benchmarks of echo-rl; each runs by itself: `python -m benchmarks.rl.NAME`."""
