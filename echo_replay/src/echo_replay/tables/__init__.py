"""Replay tables: their rows stay in the table, and a sampler decides which rows a batch contains."""
