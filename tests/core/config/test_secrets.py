"""Tokens in configurations: private files only, never shown, and the later one counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from config_errors import fails

from echo_core.base.address import Address
from echo_core.base.errors import ConfigError, SecurityError
from echo_core.config.config import load, server_arguments
from echo_core.plugins.discovery import transport_class
from echo_core.security.tokens import EVERYTHING, TokenSource, find_tokens

pytestmark = pytest.mark.every_python


def test_a_token_in_a_file_is_private_and_never_shows(write: Callable[[str, str], str]) -> None:
    path = write("a.toml", "[security]\ntoken = 'correct-horse-battery'\n")
    os.chmod(path, 0o644)
    assert fails(SecurityError, lambda: load(path, env={})).endswith("run: chmod 600 a.toml")
    os.chmod(path, 0o600)
    config = load(path, env={})
    assert config.security.find_token() == b"correct-horse-battery"
    assert "horse" not in repr(config) + repr(config.security) + str(config.explain())
    line = ["security.token=correct-horse-battery"]
    said = fails(ConfigError, lambda: load(env={}, command_line=line))
    assert "visible" in said
    assert "horse" not in said


def test_a_token_of_one_transport_is_a_secret_too(write: Callable[[str, str], str]) -> None:
    text = "[server.transport]\ntype = 'way'\ntoken = 'correct-horse-battery'\n"
    path = write("a.toml", text)
    os.chmod(path, 0o644)
    assert "run: chmod 600 a.toml" in fails(SecurityError, lambda: load(path, env={}))
    os.chmod(path, 0o600)
    for config in (load(path, env={}), load({"server": {"transport": "way://h:1?token=horse"}})):
        assert "horse" not in repr(config) + repr(config.server) + str(config.explain())


def test_a_token_in_an_address_never_shows(fakes: None) -> None:
    """A worker's address is in everything that a worker says."""
    way = transport_class("way")
    said = fails(ConfigError, lambda: way.connect_options(Address.parse("way://h:1?token=correct-horse-battery"), {}))
    assert "way://h:1?token=... would be shown" in said and "set ECHO_TOKEN" in said
    said += fails(ConfigError, lambda: way.at(Address.parse("way://h:1?host=i&token=correct-horse-battery")))
    assert "horse" not in said


def test_lines_and_roles_count_as_in_a_token_file(fakes: None) -> None:
    text = "correct-horse-battery\nwrite:another-horse-battery"
    config = load({"server": {"batch_size": 1, "transport": {"type": "path", "path": "x", "token": text}}, "security": {"token": text}}, env={})
    roles = {b"correct-horse-battery": EVERYTHING, b"another-horse-battery": {"write"}}
    source = TokenSource(config.security.accepted())
    assert {bytes(token): token.roles for token in source()} == roles
    assert {bytes(token): token.roles for token in find_tokens(list(source()))} == roles  # however often they are handed on
    (path,) = server_arguments(config)["transport"]
    assert {bytes(token): token.roles for token in find_tokens(path.options.token)} == roles
    raw = load({"security": {"token": b"write:\xff raw bytes are as they are"}}, env={}).security.find_token()
    assert raw == b"write:\xff raw bytes are as they are"
    assert raw.roles == EVERYTHING


def test_of_token_and_token_file_the_later_one_counts(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token-of-the-file")
    (tmp_path / "token").chmod(0o600)
    file = {"security": {"token_file": str(tmp_path / "token")}}
    text = {"security": {"token": "token-as-such"}}
    assert load(file, text, env={}).security.find_token() == b"token-as-such"
    assert load(text, file, env={}).security.find_token() == b"token-of-the-file"
    both = {"security": file["security"] | text["security"]}
    assert "keep one" in fails(ConfigError, lambda: load(both, env={}))
    off = load(text, env={"ECHO_SECURITY__AUTH": "no"}).security
    assert (off.find_token(), off.names_token) == (None, False)


def test_paths_know_the_home_directory() -> None:
    config = load({"security": {"token_file": "~/x"}}, env={})
    assert config.security.token_file == Path.home() / "x"
