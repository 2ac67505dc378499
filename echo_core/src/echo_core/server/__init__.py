"""The learner's side: `Server`, what clients may ask it, and its figures."""
