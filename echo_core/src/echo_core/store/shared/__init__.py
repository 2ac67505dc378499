"""A stream store in shared memory, which writers in other processes fill."""
