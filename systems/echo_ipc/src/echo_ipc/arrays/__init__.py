"""What values look like: schemas of named arrays, tensors of torch as arrays, and trees of values as bytes."""
