"""`echoctl ipc` and the list of shared memory that it shows."""
