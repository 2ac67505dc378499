"""The wire protocol between learners and workers, and the contract of transports."""
