"""Helpers around training."""
