"""Starts the shards and workers of `[cluster]`, and starts those again that die. `local` does it on this machine; other launchers build on this."""
