"""A household in text: games that are made from a seed, their rules, and an oracle."""
