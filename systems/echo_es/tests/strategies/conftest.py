"""Fixtures for the tests of strategies: no settings of the user have an effect, and no test leaves anything behind."""

from __future__ import annotations

import sys
from pathlib import Path

from echo_testing.fixtures import config_home, no_settings_of_the_user, nothing_left_behind  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))  # the tests import `functions` from here
