"""A stream store in shared memory, which writers of other processes fill."""
