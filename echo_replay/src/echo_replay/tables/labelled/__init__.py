"""The view of a replay table for samples of clients that have labels (priority and policy version)."""
