"""What travels between learners and workers, and the contract of transports."""
