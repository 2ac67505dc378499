"""Tables of steps. Their items are windows or n-step transitions, and several items can share a step."""
