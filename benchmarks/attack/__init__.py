"""Workers stream while others attack their server: `python -m benchmarks.attack`."""
