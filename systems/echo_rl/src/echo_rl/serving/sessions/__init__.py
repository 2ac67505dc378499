"""Sessions of agents: each turn continues the recorded tokens of the one before, and a session becomes records of rollouts."""
