"""From an example to the description of a sample: its leaves, their dtypes, and its tree of containers."""
