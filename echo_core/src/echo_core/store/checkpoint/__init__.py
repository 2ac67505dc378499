"""Replay tables on disk."""
