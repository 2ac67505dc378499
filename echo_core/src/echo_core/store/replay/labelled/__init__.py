"""The view of a replay table for connections whose samples carry labels (priority and policy version)."""
