"""The workers of a search: what they evaluate, and how they talk to the server."""
