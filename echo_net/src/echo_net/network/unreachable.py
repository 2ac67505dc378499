"""What a worker can do that does not reach its learner."""

from __future__ import annotations

import ipaddress

from echo_core.base.address import Address, is_ip

__all__ = ["advice"]


def advice(address: Address, trouble: object, *, tokens: bool = True) -> str:
    """The end of an error message.

    Args:
        address: where the learner should be.
        trouble: why the last attempt failed, as an exception or as text.
        tokens: whether the protocol has authentication.
    """
    text = "start the learner, or correct the address"
    if address.port is None:
        return text
    if is_ip(host := address.host.partition("%")[0]) and ipaddress.ip_address(host).is_unspecified:
        return f"{text}: a worker that connects to {address.host} connects to its own machine, so write the name or address of the learner's"
    if not address.is_loopback and "connection refused" in str(trouble).lower():
        needs = "a token" if tokens else "allow_insecure=True, because this protocol has no tokens"
        return f'{text}; a learner that is given no host listens on its own loopback only: give it host="0.0.0.0" (and {needs})'
    return text
