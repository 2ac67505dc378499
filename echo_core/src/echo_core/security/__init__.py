"""Tokens and roles, and TLS."""
