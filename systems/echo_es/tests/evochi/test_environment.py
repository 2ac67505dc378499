"""The EVOCHI_* variables mean what Evochi's README says."""

from __future__ import annotations

import pytest

from echo_core import ConfigError
from echo_es.evochi.environment import Settings, duration

NEEDED = {"EVOCHI_JWT_SECRET": "secret", "EVOCHI_POPULATION_SIZE": "50"}


def test_the_defaults_are_those_of_evochi() -> None:
    settings = Settings.read(NEEDED)
    assert (settings.population, settings.secret, settings.port, settings.log_level) == (50, "secret", 8080, "info")
    assert (settings.worker_timeout, settings.expiry) == (60.0, 720 * 3600.0)
    assert (settings.max_workers, settings.max_epochs, settings.max_slices) == (0, 0, 0)


def test_every_variable_is_read() -> None:
    settings = Settings.read(
        NEEDED
        | {
            "EVOCHI_SERVER_PORT": "9",
            "EVOCHI_WORKER_TIMEOUT": "1m30s",
            "EVOCHI_JWT_EXPIRY": "2h",
            "EVOCHI_MAX_WORKERS": "3",
            "EVOCHI_MAX_EPOCHS": "4",
            "EVOCHI_MAX_SLICES_PER_EVAL": "5",
            "EVOCHI_LOG_LEVEL": "WARN",
        }
    )
    assert (settings.port, settings.worker_timeout, settings.expiry) == (9, 90.0, 7200.0)
    assert (settings.max_workers, settings.max_epochs, settings.max_slices, settings.log_level) == (3, 4, 5, "warn")


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not set"):
        Settings.read({key: value for key, value in NEEDED.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVOCHI_POPULATION_SIZE", "0"),
        ("EVOCHI_POPULATION_SIZE", "-5"),
        ("EVOCHI_MAX_EPOCHS", "many"),
        ("EVOCHI_WORKER_TIMEOUT", "60"),
        ("EVOCHI_LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Settings.read(NEEDED | {name: value})


@pytest.mark.parametrize(("text", "seconds"), [("1m", 60), ("1h30m", 5400), ("500ms", 0.5), ("1.5s", 1.5), ("0", 0), ("2h0m0.25s", 7200.25)])
def test_durations_are_those_of_go(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "1 m", "1m-", "-1m", "1d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="1h30m"):
        duration(text)
