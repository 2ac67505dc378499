"""TOML files, with errors that name the file."""

from __future__ import annotations

import tomllib
from typing import Any

from .errors import ConfigError

__all__ = ["parse_toml"]

MAX_DEPTH = 64  # tables and arrays within each other; far above any real file, far below Python's limit of recursion


def parse_toml(data: bytes, where: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Args:
        data: the contents of the file.
        where: its name, for messages.

    Raises:
        ConfigError: it is not TOML, or holds a number of thousands of digits, or is nested more than 64 deep.
    """
    try:
        values = tomllib.loads(data.decode())
        level: list[Any] = [values]
        for _ in range(MAX_DEPTH):
            level = [child for node in level if isinstance(node, (dict, list)) for child in (node.values() if isinstance(node, dict) else node)]
            if not level:
                return values
    except RecursionError:
        pass
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors, and so is that of a number with too many digits
        raise ConfigError(f"{where}: is not valid TOML: {error}") from None
    raise ConfigError(f"{where}: its tables and arrays are nested more than {MAX_DEPTH} deep; write fewer within each other")
