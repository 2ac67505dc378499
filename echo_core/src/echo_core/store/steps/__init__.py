"""Tables of steps, whose items are windows or n-step transitions of the same steps."""
