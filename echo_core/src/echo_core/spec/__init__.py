"""The description of a sample that follows from an example: its leaves, their dtypes, and its tree of containers."""
