"""`echoctl token`: makes secrets that learner and workers share."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from echo_core.base.writing import write_whole, writing
from echo_core.security.tokens import default_token_path

from ..output import json_option, print_json

__all__ = ["command"]


@click.group(name="token", short_help="make tokens")
def command() -> None:
    """Make secrets that learner and workers share."""


@command.command(short_help="make a random token, in a file that only you can read")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Path of the file; default: this user's token file.")
@click.option("--print", "shown", is_flag=True, help="Print the token and write no file, for example for a cluster's secret store.")
@click.option("--force", is_flag=True, help="Replace the file. Processes with the old token are refused from then on.")
@json_option
def create(path: Path | None, shown: bool, force: bool, as_json: bool) -> int:
    """Make a random token of 256 bits, in a file that only you can read."""
    token = secrets.token_hex(32)
    if shown:
        if path is not None:
            raise click.UsageError("--print and --file exclude each other")
        print_json({"token": token}) if as_json else click.echo(token)
        return 0
    path = (path or default_token_path()).expanduser()
    if path.exists() and not force:
        raise click.UsageError(f"{path} exists, and processes may use its token; keep it, or replace it with --force")
    with writing(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, f"{token}\n".encode(), mode=0o600)
    if as_json:
        print_json({"file": str(path)})
    else:
        click.echo(f"{path}\non other machines: copy this file (mode 600) and set ECHO_TOKEN_FILE to its path")
    return 0
