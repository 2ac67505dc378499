"""`echoctl plugins`: lists installed plugins and their problems, and checks whether they fulfil their contract."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import FrameType
from typing import Any

import click

from echo_core.base.errors import PluginError, PluginNotFound, did_you_mean
from echo_core.base.installing import OWN, how_to_install
from echo_core.base.plural import counted
from echo_core.config.schema import options_schema
from echo_core.plugins import discovery
from echo_core.plugins.discovery import PluginRecord
from echo_core.plugins.loading import KINDS

from ..command import COMMANDS
from ..kit_progress import FILE
from ..output import console, json_option, print_json, table

__all__ = ["command"]

_GROUPS = (discovery.TRANSPORTS, discovery.SAMPLERS, discovery.OBSERVERS, discovery.COMMANDS, discovery.RESOLVERS, discovery.LAUNCHERS)
_NOUNS = {group: KINDS[group].noun for group in _GROUPS}


@click.group(name="plugins", short_help="list, show and check installed transports and samplers")
def command() -> None:
    """List, show and check installed transports, samplers, observers, commands, resolvers and launchers."""


@command.command(name="list", short_help="list installed, broken and missing plugins")
@json_option
def list_(as_json: bool) -> int:
    """List all installed plugins, and the known ones that are not installed, with the command that installs them.

    The exit code is 1 if an installed plugin cannot be used.
    """
    rows = [_row(record) for group in _GROUPS for record in discovery.default.examine(group)]
    have = {(row["kind"], row["name"]) for row in rows}
    for group, name, requirement in discovery.known():
        if (_NOUNS[group], name) not in have:
            rows.append(
                {
                    "kind": _NOUNS[group],
                    "name": name,
                    "distribution": None,
                    "version": None,
                    "api": None,
                    "state": "missing",
                    "note": how_to_install(requirement),
                }
            )
    if as_json:
        print_json(rows)
    else:
        columns = ("kind", "name", "distribution", "version", "api", "state", "note")
        table(columns, [["-" if row[column] is None else row[column] for column in columns] for row in rows])
    return int(any(row["state"] == "broken" for row in rows))


@command.command(short_help="show one plugin and its options")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> int:
    """Show everything about the plugin NAME: the distribution that provides it, and its options."""
    found = [record for group in _GROUPS for record in discovery.default.examine(group) if record.name == name]
    if not found:
        said = []
        for find in (discovery.transport, discovery.sampler):
            try:
                find(name)
            except PluginNotFound as error:
                said.append(str(error))
        # The error with a suggestion, if there is one; otherwise both errors.
        raise PluginNotFound(next((text for text in said if ";" in text), "; ".join(said) + "; see: echoctl plugins list"))
    described = [{**_row(record), "module": record.value, **_found(record), **_options(record)} for record in found]
    if as_json:
        print_json(described)
        return 0
    for plugin in described:
        for key, value in plugin.items():
            if key not in ("options", "connect_options", "found") and value not in (None, ""):
                click.echo(f"{key + ':':14}{value}")
        for what, text in plugin.get("found", {}).items():
            click.echo(f"{what + ':':<15}{text}")
        for key in ("options", "connect_options"):
            schema = plugin.get(key)
            if schema:
                click.echo(f"{key.replace('_', ' ')}:")
                required = schema.get("required", [])
                table(("  name", "type", "default"), [
                    (f"  {option}", _kind(about), "required" if option in required else about.get("default", "-"))
                    for option, about in schema["properties"].items()
                ])  # fmt: skip
    return 0


@command.command(short_help="run the conformance kit against a package")
@click.argument("package")
@click.option("--tests", type=click.Path(exists=True), help="The package's own contract tests. By default, tests are made from its options.")
@click.option("-k", "expression", help="Run only the clauses whose names match, as in pytest.")
@click.option("--timeout", type=float, default=900.0, show_default=True, help="Seconds for the whole run.")
@json_option
def check(package: str, tests: str | None, expression: str | None, timeout: float, as_json: bool) -> int:
    """Run the conformance kit against every transport and sampler of the installed distribution PACKAGE.

    The check makes a transport with its option `port` (0) or `path` (a new file), and a sampler with `capacity`. If a plugin needs other
    options, give its own tests with --tests. The exit code is 1 if a clause fails, or if the time runs out: then the clause that was running
    is named.
    """
    records = [record for group in _GROUPS[:2] for record in discovery.default.examine(group) if _same(record.distribution, package)]
    if not records:
        raise _nothing_to_check(package)
    if broken := [record for record in records if record.error]:
        raise PluginError(str(broken[0].error))
    with tempfile.TemporaryDirectory(prefix="echo-check-") as folder:
        place = Path(folder)
        module = place / "test_contract.py"
        module.write_text(_CONTRACT + "\n".join(_contract(record) for record in records))
        command_line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "echoctl.kit_progress"]
        command_line += ["--rootdir", folder, tests or str(module), *(["-k", expression] if expression else [])]
        progress = place / "progress"
        in_time = _run(command_line, None if tests else folder, progress, timeout, quiet=as_json)
        if not progress.exists():
            raise PluginError(f"the kit did not run; {how_to_install('echo-core[testing]')}\n{(place / 'output').read_text()[-2000:] if as_json else ''}")
        result = _result(progress, None if in_time else timeout)
    result = {"distribution": package, "plugins": [record.name for record in records], **result}
    if as_json:
        print_json(result)
    else:
        _report(package, result)
    return int(bool(result["failed"]) or not result["passed"] or bool(result["hung"]))


def _nothing_to_check(package: str) -> PluginError:
    """The error about a distribution that is not installed or has no plugins. It never tells anybody to install a name that was typed."""
    found = [record for group in _GROUPS[:2] for record in discovery.default.installed(group)]
    if providers := sorted({record.distribution for record in found if record.name == package}):
        return PluginError(f"{package!r} is a plugin of {providers[0]}; run: echoctl plugins check {providers[0]}")
    try:
        distribution(package)
    except (PackageNotFoundError, ValueError):
        have = sorted({record.distribution for record in found})
        near = did_you_mean(package, have) or f"; the packages with plugins here are {', '.join(have) or 'none'}"
        if any(_same(package, own) for own in OWN):
            near = f"; {how_to_install(package)}"
        return PluginNotFound(f"no package named {package!r} is installed in this Python ({sys.executable}){near}")
    return PluginError(
        f"{package} has no transport and no sampler; its pyproject.toml needs an entry point in echo.transports or echo.samplers,"
        " and a package must be installed again after its entry points have changed"
    )


def _run(command_line: list[str], folder: str | None, progress: Path, timeout: float, quiet: bool) -> bool:
    """Run the kit. False if it took too long and was killed, with all processes that it had started."""
    env = {**os.environ, FILE: str(progress)}
    with _sigterm_raises(), open(progress.with_name("output"), "wb") as output:
        kit = subprocess.Popen(command_line, cwd=folder, env=env, stdout=output if quiet else None, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            kit.wait(timeout)
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:  # Ctrl-C reaches only this process, because the kit has a session of its own
            with suppress(ProcessLookupError):
                os.killpg(kit.pid, signal.SIGKILL)
            kit.wait()


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise SystemExit. By default they would end this process at once, and the kit would go on without it."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(package: str, result: dict[str, Any]) -> None:
    screen = console()
    for failure in result["failed"]:
        screen.print(f"failed: {failure['clause']}: {failure['why'].splitlines()[0] if failure['why'] else ''}", markup=False)
    if result["hung"]:
        screen.print(result["hung"], style="red", markup=False)
    kept = result["passed"] > 0 and not result["failed"] and not result["hung"]
    screen.print(
        f"{package}: {counted(result['passed'], 'clause')} passed, {len(result['failed'])} failed, {result['skipped']} not applicable"
        + (f", {result['not_run']} not run" if result["not_run"] else ""),
        style="green" if kept else "red",
    )


_CONTRACT = '''"""Made by `echoctl plugins check`."""

from echo_core.plugins import discovery
from echo_testing import SamplerContract, TransportContract
'''


_CLASS = """

class Test{name}({base}Contract):
    def {kind}(self, **options):
        return discovery.{kind}_class({plugin!r})(**{{**dict({given}), **options}})
"""


def _contract(record: PluginRecord) -> str:
    """The source of the test class of one plugin."""
    if record.group == discovery.TRANSPORTS:
        cls: Any = discovery.transport_class(record.name)
        places = {"port": "port=0", "path": "path=str(self.scratch / self.unique())", "name": "name=self.unique()"}
        fields = {field.name for field in dataclasses.fields(cls.Options)}
        given, kind = next((how for option, how in places.items() if option in fields), ""), "transport"
    else:
        given, kind = "capacity=1000" if discovery.sampler_class(record.name).storage == "replay" else "", "sampler"
    name = "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", record.name))
    return _CLASS.format(name=name, base=kind.capitalize(), kind=kind, plugin=record.name, given=given)


def _result(progress: Path, timeout: float | None) -> dict[str, Any]:
    """What `kit_progress` wrote. `timeout` is given if the run was stopped after so many seconds: then the clause that ran is named."""
    from echo_testing.capabilities import NOT_RUN  # the kit has just run, so it is installed; the other commands do not need it

    running, found = None, 0
    ended: dict[str, tuple[str, str]] = {}  # by clause: its outcome, and why
    for line in map(json.loads, progress.read_text().splitlines()):
        if line["event"] == "found":
            found = line["count"]
        elif line["event"] == "begins":
            running = line["clause"]
        elif line["event"] == "over":
            running = None
        elif ended.get(line["clause"], ("", ""))[0] != "failed":  # a clause fails too if only its end fails
            ended[line["clause"]] = line["event"], line["why"]
    if running is not None:
        ended.pop(running, None)
    ended = {clause: (outcome, why) for clause, (outcome, why) in ended.items() if NOT_RUN not in why}
    outcomes = [outcome for outcome, _ in ended.values()]
    hung = ""
    if timeout is not None:
        where = f"{running} was running" if running else "no clause was running: pytest itself was beginning or ending"
        hung = f"stopped after {timeout:g} s (--timeout): {where}"
    elif running is not None:
        hung = f"the kit's process died in {running}"
    return {
        "passed": outcomes.count("passed"),
        "skipped": outcomes.count("skipped"),
        "failed": [{"clause": clause, "why": why} for clause, (outcome, why) in ended.items() if outcome == "failed"],
        "hung": hung,
        "not_run": max(0, found - len(ended) - (running is not None)),
    }


def _row(record: PluginRecord) -> dict[str, Any]:
    state = "disabled" if record.disabled else "broken" if record.error else "ok"
    note = record.disabled or record.error or getattr(record.info, "summary", "")
    if state == "ok" and record.group == discovery.COMMANDS and record.name in COMMANDS:
        state, note = "hidden", "echoctl has a command of this name itself"
    return {
        "kind": _NOUNS[record.group],
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "api": getattr(record.info, "api", None),
        "state": state,
        "note": note,
    }


def _options(record: PluginRecord) -> dict[str, Any]:
    if record.error or record.disabled or record.group in _GROUPS[2:]:
        return {}
    if record.group == discovery.SAMPLERS:
        cls: Any = discovery.sampler_class(record.name)
        return {"storage": cls.storage, "options": options_schema(cls.Options)}
    cls = discovery.transport_class(record.name)
    return {"options": options_schema(cls.Options), "connect_options": options_schema(cls.ConnectOptions)}


def _found(record: PluginRecord) -> dict[str, Any]:
    """A transport's findings about this machine."""
    if record.error or record.disabled or record.group != discovery.TRANSPORTS:
        return {}
    found = discovery.transport_class(record.name).describe()
    return {"found": found} if found else {}


def _kind(about: dict[str, Any]) -> str:
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(map(_kind, about["anyOf"])))  # a path is text in JSON
    return ", ".join(map(str, about["enum"])) if "enum" in about else about.get("type", "any")


def _same(one: str, other: str) -> bool:
    return one.replace("_", "-").replace(".", "-").lower() == other.replace("_", "-").replace(".", "-").lower()
