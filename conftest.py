"""What holds for the tests of every distribution in this repository."""

from __future__ import annotations

import hypothesis

# How long an example takes depends on the machine: a busy one is no failure.
hypothesis.settings.register_profile("echo", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("echo")
