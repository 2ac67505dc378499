"""Objects in shared memory: `Cell`, `Bytes`, `Ring` and `Rows`, and how processes find and attach to them."""
