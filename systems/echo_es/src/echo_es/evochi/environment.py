"""The environment variables of Evochi's server, read as its README describes them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from echo_core import ConfigError

from .tokens import EXPIRY

__all__ = ["Settings", "duration"]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
LEVELS = ("debug", "info", "warn", "error")


def duration(text: str, name: str = "a duration") -> float:
    """The seconds of a duration as Go writes it: 1m, 1h30m, 500ms. Raises ConfigError."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"{name} is {text!r:.80}, but it must be a number with a unit, for instance 1m, 1h30m or 500ms")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _count(text: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ConfigError(f"{name} is {text!r:.80}, but it must be a whole number of at least 0")
    return int(text)


@dataclass(frozen=True)
class Settings:
    """What EVOCHI_* variables say, with Evochi's defaults. 0 means that there is no limit.

    Attributes:
        population: how many individuals an epoch has.
        secret: the secret that signs the workers' tokens. None means that the server makes one, which is valid until the server ends.
        port: the port of the gRPC server.
        worker_timeout: seconds without a sign of life after which a worker is removed; `FrontOptions` says more.
        expiry: seconds for which a token is valid.
    """

    population: int
    secret: str | None = None
    port: int = 8080
    worker_timeout: float = 60.0
    expiry: float = EXPIRY
    max_workers: int = 0
    max_epochs: int = 0
    max_slices: int = 0
    log_level: str = "info"

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """The settings in `environment`, which is this process's by default.

        Raises ConfigError with the name of a variable that is missing or cannot be read.
        """
        values = os.environ if environment is None else environment
        for name, why in {"EVOCHI_JWT_SECRET": "it signs the workers' tokens", "EVOCHI_POPULATION_SIZE": "it is the number of individuals"}.items():
            if not values.get(name):
                raise ConfigError(f"{name} is not set, and Evochi requires it: {why}")

        def count(name: str, default: int) -> int:
            return _count(values[name], name) if values.get(name) else default

        def seconds(name: str, default: float) -> float:
            return duration(values[name], name) if values.get(name) else default

        level = (values.get("EVOCHI_LOG_LEVEL") or "info").lower()
        if level not in LEVELS:
            raise ConfigError(f"EVOCHI_LOG_LEVEL is {level!r:.80}, but it must be one of {', '.join(LEVELS)}")
        population = count("EVOCHI_POPULATION_SIZE", 0)
        if population < 1:
            raise ConfigError("EVOCHI_POPULATION_SIZE is 0, but a population has at least one individual")
        return cls(
            population=population,
            secret=values["EVOCHI_JWT_SECRET"],
            port=count("EVOCHI_SERVER_PORT", cls.port),
            worker_timeout=seconds("EVOCHI_WORKER_TIMEOUT", cls.worker_timeout),
            expiry=seconds("EVOCHI_JWT_EXPIRY", cls.expiry),
            max_workers=count("EVOCHI_MAX_WORKERS", 0),
            max_epochs=count("EVOCHI_MAX_EPOCHS", 0),
            max_slices=count("EVOCHI_MAX_SLICES_PER_EVAL", 0),
            log_level=level,
        )
