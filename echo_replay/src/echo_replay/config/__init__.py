"""The description of replay tables, in code and in files of configuration."""
