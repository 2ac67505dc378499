"""The store of a learner: streams, replay tables and tables of steps, and the contract of samplers."""
