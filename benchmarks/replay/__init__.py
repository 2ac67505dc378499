"""Replay tables measured: Echo beside cpprb, TorchRL, Reverb and a plain memcpy, on the harness of the stream benchmarks."""
