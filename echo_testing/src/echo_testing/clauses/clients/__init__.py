"""Clauses about the clients of a server: their ids, names, counters and roles."""
