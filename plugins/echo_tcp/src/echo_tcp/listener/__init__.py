"""The learner's end of `tcp://`, without its native loops: it accepts clients, authenticates them, and carries out their requests."""
