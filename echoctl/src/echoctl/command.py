"""The root command. It imports a subcommand when that is called, and is the only place where errors become exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

import click

from echo_core import __version__
from echo_core.base.errors import AddressError, ConfigError, EchoError, PluginError, SpecError, did_you_mean
from echo_core.base.foreign_text import escaped
from echo_core.plugins import discovery

__all__ = ["COMMANDS", "FOUND_WRONG", "UNREACHABLE", "UNUSABLE", "run"]

FOUND_WRONG, UNUSABLE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130

#: The exception that click 8.2 raises for a group without a command. Earlier versions print the help themselves.
_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())

COMMANDS = {
    "serve": "run a server from a configuration",
    "relay": "pass the weights of a learner on to many workers",
    "top": "watch a running server, in the terminal or in a browser",
    "tap": "look at a few samples of a running server",
    "drain": "take a server out of service: its workers go elsewhere or wait",
    "doctor": "check this machine, and a server if its address is given",
    "bench": "measure transports on this machine",
    "plugins": "list, show and check installed transports and samplers",
    "config": "show, validate and describe configurations",
    "token": "make tokens",
    "tls": "make an authority and certificates for TLS",
    "init": "make your own plugin package",
}


class _Root(click.Group):
    """Imports each command when it is used, so that `echoctl token` does not wait for the import of rich."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_others()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            return cast(click.Command, import_module(f".commands.{name}", __package__).command)
        if name not in (record.name for record in discovery.installed(discovery.COMMANDS)):
            return None
        found = discovery.command(name)
        if not isinstance(found, click.Command):
            raise PluginError(f"the command {name!r} is {found!r:.100}, which is not a click.Command; see: echoctl plugins show {name}")
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            raise click.UsageError(f"there is no command {args[0]!r}{did_you_mean(args[0], known) or '; see: echoctl --help'}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # it is tested here, because versions of click name it differently
            click.echo(ctx.get_help(), err=True)
            ctx.exit(UNUSABLE)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        if others := _others():
            with formatter.section("Commands of plugins"):
                formatter.write_dl(list(others.items()))


def _others() -> dict[str, str]:
    """The commands of installed plugins, and where each comes from. It imports none of them. A command of Echo's own wins over theirs."""
    records = [record for record in discovery.installed(discovery.COMMANDS) if not record.disabled and record.name not in COMMANDS]
    return {record.name: record.error or f"from {record}" for record in records}


@click.command(cls=_Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="echoctl", message="%(prog)s %(version)s")
def root() -> None:
    """Start, watch, check and extend Echo. Every command takes --json.

    Exit codes: 0 for success, 1 if a check found a problem, 2 if the command line or the configuration is invalid, 3 if a server or a
    plugin cannot be reached or has refused, 130 for an interrupt.
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command line, and return its exit code."""
    try:
        result = root.main(args=list(arguments), prog_name="echoctl", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as left:
        return left.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except _NO_ARGUMENTS as error:
        print(error, file=sys.stderr)  # the help text, without "Error:"
        return UNUSABLE
    except click.ClickException as error:
        return _fail(arguments, UNUSABLE, error.format_message(), error)
    except BrokenPipeError:  # the reader, as in `echoctl ... | head`, has ended
        sys.stderr.close()
        return 0
    except (AddressError, ConfigError, SpecError) as error:
        return _fail(arguments, UNUSABLE, str(error), error)
    except (EchoError, OSError) as error:
        return _fail(arguments, UNREACHABLE, str(error), error)
    except (ValueError, MemoryError) as error:
        return _fail(arguments, UNUSABLE, str(error), error)


def _fail(arguments: Sequence[str], code: int, text: str, error: Exception) -> int:
    if "--json" in arguments:
        print(json.dumps({"error": text, "type": type(error).__name__, "exit_code": code}))
    else:
        context: Any = getattr(error, "ctx", None)
        if isinstance(error, click.UsageError) and context is not None:
            print(context.get_usage(), file=sys.stderr)
        print("echoctl:", escaped(text, keep="\n"), file=sys.stderr)
    return code
