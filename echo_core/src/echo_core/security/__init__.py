"""Tokens, roles and TLS."""
