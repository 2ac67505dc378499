"""TCP with TLS and TCP with checksums, which are channels of `echo_net.channel`."""
