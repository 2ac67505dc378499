"""The native interface through which transports put samples into a store (include/echo_capi.h)."""
