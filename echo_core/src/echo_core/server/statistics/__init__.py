"""The figures of a server: for loggers, for the log, and for Prometheus."""
