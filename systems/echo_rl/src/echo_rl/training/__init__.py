"""Training: the learner's end of the loop over Echo."""
