"""Replay tables: rows that stay, and that are drawn by a sampler."""
