"""What every test of echo-cluster may rely on: no settings of the person who runs them, and nothing left behind."""

from __future__ import annotations

from echo_testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind  # noqa: F401
