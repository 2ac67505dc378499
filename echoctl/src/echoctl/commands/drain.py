"""`echoctl drain`: takes a running server out of service."""

from __future__ import annotations

import click

from echo_core.client.observer import Observer

from ..output import json_option, print_json

__all__ = ["command"]


@click.command(name="drain", short_help="take a server out of service: its workers go elsewhere or wait")
@click.argument("address")
@click.option("--timeout", type=click.FloatRange(0, 86400), default=30.0, show_default=True, help="Seconds in which the server notifies its workers.")
@click.option("--no-auth", is_flag=True, help="Connect without a token to a server that asks for none.")
@json_option
def command(address: str, timeout: float, no_auth: bool, as_json: bool) -> int:
    """Drain the server at ADDRESS: it takes no new sessions, acknowledges what has arrived, and says goodbye to its workers.

    Workers that resolve its address go to another server, and others wait for one at this address. The batches that the server has can still be
    taken by its learner. This needs a token for the role admin.
    """
    with Observer(address, auth=not no_auth, name="echoctl drain") as observer:
        observer.request("drain", {"timeout": timeout})
    if as_json:
        print_json({"address": address, "draining": True})
    else:
        click.echo(f"{address} is draining")
    return 0
