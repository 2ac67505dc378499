"""The way from a pytree to the addresses of its arrays, and back. `flattener` is the module; the other files are parts of it."""
