"""`echoctl es`: runs servers and workers of searches, shows what happens in them, and reads their logs."""
