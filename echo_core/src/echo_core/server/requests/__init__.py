"""The requests of clients and the calls of the server: those that wait, those that were carried out, and those that travel in pieces."""
