"""Configuration: files, environment, command line and arguments, merged and checked."""
