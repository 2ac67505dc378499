"""`echoctl tls`: makes an authority of your own, and certificates for learners and workers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from echo_core.base.foreign_text import escaped
from echo_core.security.certificates import Certificate, read_certificate, renew
from echo_core.security.tls import AUTHORITY_DAYS, CERTIFICATE_DAYS, Authority, Identity
from echo_core.security.tokens import default_token_path

from ..output import json_option, print_json

__all__ = ["command"]

SOON_DAYS = 30

F = TypeVar("F", bound=Callable[..., Any])


def _days(default: float) -> Callable[[F], F]:
    return click.option("--days", type=click.FloatRange(min=0, min_open=True), default=default, show_default=True, help="How long it is valid.")


_folder = click.option("--authority", "folder", type=click.Path(path_type=Path), help="Folder of the authority; default: tls beside this user's token file.")
_target = click.option("--to", "target", type=click.Path(path_type=Path), help="Folder for certificate and key; default: that of the authority.")


def _authority(folder: Path | None) -> Path:
    return (folder or default_token_path().with_name("tls")).expanduser()


@click.group(name="tls", short_help="make an authority and certificates for TLS")
def command() -> None:
    """Make an authority of your own, and certificates for learners and workers.

    Give authority.pem to everybody. Whoever can read authority.key can impersonate any learner or worker, so it stays on one machine.
    """


@command.command(short_help="make an authority")
@_folder
@_days(AUTHORITY_DAYS)
@json_option
def authority(folder: Path | None, days: float, as_json: bool) -> int:
    """Make an authority: authority.pem for everybody, and authority.key, which stays secret."""
    made = Authority.create(_authority(folder), days=days)
    if as_json:
        print_json({"authority": str(made.certificate)})
    else:
        here = f" --authority {shlex.quote(str(folder))}" if folder else ""
        click.echo(f"{made.certificate}\nfor workers: tls_authority; for a learner that asks workers for certificates: tls_client_authority")
        click.echo(f"next: echoctl tls server learner --host NAME{here}")
    return 0


@command.command(short_help="make a learner's certificate")
@click.argument("name")
@click.option("--host", "hosts", multiple=True, required=True, help="A name or address under which workers reach it; may be repeated.")
@_folder
@_target
@_days(CERTIFICATE_DAYS)
@json_option
def server(name: str, hosts: tuple[str, ...], folder: Path | None, target: Path | None, days: float, as_json: bool) -> int:
    """Make NAME.pem and NAME.key for a learner that workers reach under the given hosts."""
    return _issued(Authority(_authority(folder)).issue(name, hosts, days=days, directory=target), as_json)


@command.command(short_help="make a worker's certificate")
@click.argument("name")
@_folder
@_target
@_days(CERTIFICATE_DAYS)
@json_option
def client(name: str, folder: Path | None, target: Path | None, days: float, as_json: bool) -> int:
    """Make NAME.pem and NAME.key for a worker. Its holder cannot pass for a learner."""
    return _issued(Authority(_authority(folder)).issue(name, days=days, directory=target), as_json)


@command.command(name="renew", short_help="replace certificates and their keys by new ones")
@click.argument("certificates", type=click.Path(path_type=Path), nargs=-1, required=True)
@_folder
@_days(CERTIFICATE_DAYS)
@json_option
def renew_them(certificates: tuple[Path, ...], folder: Path | None, days: float, as_json: bool) -> int:
    """Replace each certificate and its key by new ones with the same name and hosts. Running learners and workers use them for new connections."""
    issuer = Authority(_authority(folder))
    for one in certificates:
        _issued(renew(one, issuer, days=days), as_json)
    return 0


@command.command(short_help="show names, hosts and dates of certificates")
@click.argument("certificates", type=click.Path(path_type=Path), nargs=-1, required=True)
@json_option
def show(certificates: tuple[Path, ...], as_json: bool) -> int:
    """Show what certificates say. The exit code is 1 if one of them is not valid any more, or ends within 30 days."""
    found = [(path, read_certificate(path)) for path in certificates]
    if as_json:
        print_json([_described(path, said) for path, said in found])
    else:
        for path, said in found:
            hosts = f" for {', '.join(said.hosts)}" if said.hosts else ""
            click.echo(escaped(f"{path}: {said.name}{hosts}, until {said.ends:%Y-%m-%d %H:%M} UTC ({said.days_left:.0f} days left)"))
    return int(any(said.days_left < SOON_DAYS for _, said in found))


def _issued(made: Identity, as_json: bool) -> int:
    if as_json:
        print_json({"certificate": str(made.certificate), "key": str(made.key)})
    else:
        click.echo(f'tls_certificate = "{made.certificate}"\ntls_key = "{made.key}"')
    return 0


def _described(path: Path, said: Certificate) -> dict[str, Any]:
    dates = {"begins": said.begins.isoformat(), "ends": said.ends.isoformat(), "days_left": said.days_left}
    return {"certificate": str(path), "name": said.name, "hosts": list(said.hosts), **dates}
