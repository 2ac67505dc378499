"""The experiments of a server: one search each, with what it has learned and its results."""
