"""The clauses of the transport contract, by subject; `TransportContract` inherits them all."""
