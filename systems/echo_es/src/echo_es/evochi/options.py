"""How Evochi's clients are served: addresses, secrets, TLS, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echo_core import ConfigError, SecurityError
from echo_core.base.address import is_loopback_host

from .environment import Settings
from .tokens import EXPIRY

__all__ = ["FrontOptions"]


@dataclass(frozen=True, kw_only=True)
class FrontOptions:
    """How Evochi's clients are served.

    Attributes:
        host, port: the address at which the server listens. Port 0 takes any free port.
        secret: the secret that signs the tokens of workers. None makes a new one, so that tokens are valid until this server ends.
        expiry: for how many seconds such a token is valid.
        token: what workers must send to join, as `x-echo-token` in the metadata of their calls. None means that they need no token.
        tls_certificate, tls_key: PEM files. Give both of them or none. They are read again for new connections when they were replaced.
        allow_insecure: whether the server may be reachable from other machines without TLS and a join token.
        worker_timeout: seconds after which a worker is removed that waits for a task and sends no heartbeat, or whose connection does not answer any more. An
            evaluation may take longer; `ESServer(task_timeout=)` limits that.
        max_workers: the largest number of workers. 0 means that there is no limit.
        metrics_port: the port at which the metrics are served over HTTP, at the same host. 0 takes any free port. None means that they are not served.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    secret: str | bytes | None = field(default=None, repr=False)
    expiry: float = EXPIRY
    token: str | None = field(default=None, repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    allow_insecure: bool = False
    worker_timeout: float = 60.0
    max_workers: int = 0
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key go together; give both or neither")
        if self.worker_timeout <= 0 or self.expiry <= 0:
            raise ConfigError("worker_timeout and expiry are seconds and must be more than 0")
        protected = self.tls_certificate is not None and bool(self.token)
        if not is_loopback_host(self.host) and not protected and not self.allow_insecure:
            raise SecurityError(
                f"refusing to serve clients of Evochi on {self.host or 'every interface'}: everyone who can reach it could join, and make the workers unpickle "
                "what they like. Do one of these:\n"
                '  - listen on loopback, for workers on this machine: evochi="127.0.0.1:8080"\n'
                "  - give TLS and a join token: tls_certificate=, tls_key= and token=; workers send the token as x-echo-token in their metadata\n"
                "  - accept the risk, on a network you trust: allow_insecure=True"
            )

    @classmethod
    def given(cls, where: str | FrontOptions | Settings, **more: Any) -> FrontOptions:
        """The options in `"host:port"`, or in the environment variables of Evochi. Evochi's server listens on all interfaces; this listens on loopback
        unless `more` has another host.

        Raises ConfigError if the address cannot be read.
        """
        if isinstance(where, FrontOptions):
            return where
        if isinstance(where, Settings):
            found = {"port": where.port, "secret": where.secret, "expiry": where.expiry, "worker_timeout": where.worker_timeout}
            return cls(**{**found, "max_workers": where.max_workers, **more})
        host, colon, port = where.rpartition(":") if isinstance(where, str) else ("", "", "")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f'evochi: {where!r:.80} is no address; write host:port, for instance "127.0.0.1:8080"')
        return cls(host=host.removeprefix("[").removesuffix("]"), port=int(port), **more)
