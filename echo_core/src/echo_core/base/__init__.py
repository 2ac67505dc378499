"""The modules that all others build on: errors, addresses, readers of options, and memory of this machine."""
