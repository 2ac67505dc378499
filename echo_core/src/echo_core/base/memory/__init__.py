"""Memory of this machine: how much is left, memory that processes share, and memory that is used again."""
