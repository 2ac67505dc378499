"""Functions of the code tasks: where they come from, and where they run."""
