"""The rows of a replay table and the buffers into which they are gathered."""
