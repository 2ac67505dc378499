"""The rows of a replay table, and the buffers into which rows are gathered to form a batch."""
