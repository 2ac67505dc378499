"""Clauses on weights: from the learner to its workers, and through relays."""
