"""For every transport that listens on a network, and part of the public surface.

* `connection_rate`: `ConnectionRateLimit`, behind the option `max_connection_rate`, lets in only so many new connections a second.
* `listening`: finds the listening sockets of a library that does not show them, and says why an address cannot be taken.
"""
