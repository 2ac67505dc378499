"""The weights of a server: how it publishes its own, passes on those of another server, and knows who holds which."""
