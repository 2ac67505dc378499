"""The store of a learner: streams, replay tables, tables of steps, and the contract of samplers."""
