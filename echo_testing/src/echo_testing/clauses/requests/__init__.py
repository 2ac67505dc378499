"""Clauses about requests of clients and calls of the server, which are answered later."""
