"""Benchmarks of echo-es: `python -m benchmarks.es` measures a search, `strategies` the strategies, and `evochi_front` the server for clients of Evochi."""
