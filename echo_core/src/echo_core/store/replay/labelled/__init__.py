"""Replay tables as connections see them whose samples carry labels."""
