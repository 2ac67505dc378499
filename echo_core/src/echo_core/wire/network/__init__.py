"""For transports over a network: listening sockets, and a limit for new connections."""
