"""The learner's side: `Server`, the operations that clients can request, and statistics."""
