"""The native door through which transports put samples into a store (include/echo_capi.h)."""
