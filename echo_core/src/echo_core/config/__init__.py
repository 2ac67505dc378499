"""Reads the configuration: it merges and checks files, environment, command line and arguments."""
