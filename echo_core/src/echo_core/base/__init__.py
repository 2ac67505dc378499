"""What everything else rests on: errors, addresses, readers of options, memory of this machine."""
