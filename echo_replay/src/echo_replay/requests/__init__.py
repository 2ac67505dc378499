"""How a server answers the requests of clients for its tables."""
