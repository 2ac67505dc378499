"""The worker's side: `Client`, remote tables, observers and trajectories."""
