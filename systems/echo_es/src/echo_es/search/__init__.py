"""The state machine of a search, without input and output."""
