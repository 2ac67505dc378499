"""The text of an error, which names file, key and remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def fails(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)
