"""Commands of plugins: the entry-point group `echo.commands`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
import sys
import click
print("imported", file=sys.stderr)

@click.command()
@click.argument("name")
def greet(name):
    "Greet somebody."
    if name == "nobody":
        raise click.UsageError("there is nobody to greet")
    if name == "stranger":
        from echo_core.base.errors import SecurityError
        raise SecurityError("strangers are not greeted")
    click.echo(f"hello {name}")

text = "no command"
call = print
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


@pytest.fixture
def with_plugins(site: Path, echoctl: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: str, **env: str) -> Any:
        return echoctl(*arguments, PYTHONPATH=os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]), **env)

    return run


def install(site: Path, dist: str, **commands: str) -> None:
    info = site / f"{dist.replace('-', '_')}-0.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[echo.commands]\n" + "".join(f"{name} = {value}\n" for name, value in commands.items()))
    (site / "fake_command.py").write_text(SOURCE)


def test_a_command_of_a_plugin(site: Path, with_plugins: Callable[..., Any]) -> None:
    install(site, "echo-greet", greet="fake_command:greet")
    helped = with_plugins("--help")
    assert helped.code == 0 and "from echo-greet 0.3" in helped.out and "imported" not in helped.err
    done = with_plugins("greet", "world")
    assert (done.code, done.out) == (0, "hello world\n")
    assert with_plugins("greet", "nobody").code == 2
    refused = with_plugins("greet", "stranger")
    assert refused.code == 3 and "strangers are not greeted" in refused.err
    assert "did you mean 'greet'" in with_plugins("gret").err
    listed = with_plugins("plugins", "list", "--json")
    assert {"kind": "command", "name": "greet", "distribution": "echo-greet", "version": "0.3", "api": None, "state": "ok", "note": ""} in listed.json


def test_a_command_of_echos_own_wins(site: Path, with_plugins: Callable[..., Any]) -> None:
    install(site, "echo-greet", token="fake_command:greet")
    assert "make tokens" in with_plugins("--help").out
    shown = with_plugins("token", "--help")
    assert shown.code == 0 and "imported" not in shown.err
    row = next(row for row in with_plugins("plugins", "list", "--json").json if row["kind"] == "command" and row["distribution"] == "echo-greet")
    assert row["state"] == "hidden" and "echoctl has a command of this name" in row["note"]


def test_two_providers_of_one_command(site: Path, with_plugins: Callable[..., Any]) -> None:
    install(site, "echo-greet", greet="fake_command:greet")
    install(site, "echo-other", greet="fake_command:greet")
    done = with_plugins("greet", "world")
    assert done.code == 3 and "echo-greet 0.3, echo-other 0.3" in done.err and "ECHO_DISABLE_PLUGINS" in done.err
    assert "more than one distribution" in " ".join(with_plugins("--help").out.split())
    assert with_plugins("greet", "world", ECHO_DISABLE_PLUGINS="echo-other").out == "hello world\n"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("fake_command:text", "must name something to call"),
        ("fake_command:call", "not a click.Command"),
        ("nowhere:greet", "No module named 'nowhere'"),
        ("fake_command:nothing", "nothing"),
    ],
)
def test_a_broken_command_breaks_no_other(site: Path, with_plugins: Callable[..., Any], value: str, why: str) -> None:
    install(site, "echo-greet", greet=value)
    done = with_plugins("greet")
    assert done.code == 3 and why in done.err and "Traceback" not in done.err
    assert with_plugins("token", "--help").code == 0 and with_plugins("--help").code == 0


def test_a_disabled_command(site: Path, with_plugins: Callable[..., Any]) -> None:
    install(site, "echo-greet", greet="fake_command:greet")
    assert "greet" not in with_plugins("--help", ECHO_DISABLE_PLUGINS="echo-greet").out
    done = with_plugins("greet", "world", ECHO_DISABLE_PLUGINS="echo-greet")
    assert done.code == 3 and "disabled by ECHO_DISABLE_PLUGINS" in done.err
