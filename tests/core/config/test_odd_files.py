"""TOML files that nobody wrote on purpose: the error is ours and names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo_core.base.errors import ConfigError
from echo_core.config.config import load as load_config
from echo_core.spec.example import load as load_example

ODD = {
    "arrays": b"a = " + b"[" * 5000 + b"]" * 5000,
    "tables": b"a = " + b"{b = " * 5000 + b"1" + b"}" * 5000,
    "dotted": b".".join([b"a"] * 5000) + b" = 1",
    "header": b"[" + b".".join([b"a"] * 200) + b"]\nb = 1",
    "digits": b"a = " + b"9" * 5000,
    "bytes": b"a = \"\xff\"",
    "nul": b"a = \x00",
}


@pytest.mark.parametrize("odd", ODD)
def test_the_error_names_the_file(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_bytes(ODD[odd])
    for read in (lambda: load_config(path, env={}), lambda: load_example(str(path))):
        with pytest.raises(ConfigError, match=f"^{path}: (is not valid TOML|its tables and arrays are nested more than 64 deep)"):
            read()


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "9" * 5000, "{a = " * 5000])
def test_values_of_the_environment(text: str) -> None:
    with pytest.raises(ConfigError, match="ECHO_SERVER__BATCH_SIZE"):
        load_config(env={"ECHO_SERVER__BATCH_SIZE": text})
