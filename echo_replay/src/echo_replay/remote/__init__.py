"""A client's access to the tables of a server."""
