"""Environments of other libraries and of other machines: ``gym:ID``, ``rg:NAME``, ``miniwob:TASK`` and ``openenv:URL``."""
