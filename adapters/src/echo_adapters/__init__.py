"""Connects Echo to other libraries. Each has its own module; importing this package imports none of them."""
