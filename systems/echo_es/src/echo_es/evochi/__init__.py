"""The protocol of Evochi (evochi.v1): its clients join an `ESServer`, and our `Worker` joins an Evochi server."""
