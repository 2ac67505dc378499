"""The benchmark: episodes of tasks, methods and seeds in a file, and a report that is computed from this file alone."""
