"""Loads one plugin. Any fault of the plugin becomes one PluginError that ends in the fix."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

import pluggy

from .. import __version__
from ..base.descriptors import lacks_descriptors, no_descriptors
from ..base.errors import PluginError, PluginVersionError, did_you_mean
from ..base.installing import OWN, how_to_install, how_to_mend, how_to_replace
from . import hookspecs
from .hookspecs import PLUGIN_API, PROJECT, SamplerInfo, TransportInfo

__all__ = [
    "COMMANDS",
    "KINDS",
    "LAUNCHERS",
    "OBSERVERS",
    "RESOLVERS",
    "SAMPLERS",
    "TRANSPORTS",
    "Kind",
    "PluginRecord",
    "failure",
    "import_class",
    "import_module",
    "load_info",
    "load_observer",
    "new_manager",
    "register",
]

TRANSPORTS = "echo.transports"
SAMPLERS = "echo.samplers"
OBSERVERS = "echo"
COMMANDS = "echo.commands"
RESOLVERS = "echo.resolvers"
LAUNCHERS = "echo.launchers"

_CORE = re.compile(r"echo[-_.]core(?![A-Za-z0-9._-]*[A-Za-z0-9])", re.I)  # a requirement on echo-core


class Kind(NamedTuple):
    """The name of one kind of plugin (one group), and how plugins of that kind describe themselves."""

    noun: str
    hook: str
    info: type


KINDS = {
    TRANSPORTS: Kind("transport", "echo_transports", TransportInfo),
    SAMPLERS: Kind("sampler", "echo_samplers", SamplerInfo),
    OBSERVERS: Kind("observer", "", type(None)),
    # The entry points of these name objects, which describe nothing.
    COMMANDS: Kind("command", "", type(None)),
    RESOLVERS: Kind("resolver", "", type(None)),
    LAUNCHERS: Kind("launcher", "", type(None)),
}


@dataclass(frozen=True)
class PluginRecord:
    """One entry point as it was found; its module need not have been imported.

    Attributes:
        group: `"echo.transports"`, `"echo.samplers"`, `"echo"`, `"echo.commands"`, `"echo.resolvers"` or
            `"echo.launchers"`.
        name: the entry-point name, which users type.
        value: the module that it names; for a command, a resolver or a launcher, the module and the object in it.
        distribution, version: the distribution that provides it, and its version.
        disabled: the setting that disables it (`"ECHO_DISABLE_PLUGINS"`, `"[plugins] disable"`), or None.
        error: why it cannot be used, as far as is known without importing it, or None.
        info: the plugin's description of itself; only `PluginHost.examine` sets it.
    """

    group: str
    name: str
    value: str
    distribution: str
    version: str
    disabled: str | None = None
    error: str | None = None
    info: TransportInfo | SamplerInfo | None = None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    @property
    def title(self) -> str:
        """Its name in messages: `transport 'tcp' (echo-tcp 0.1)`."""
        return f"{KINDS[self.group].noun} {self.name!r} ({self})"


# Why plugins could not be loaded, for listings. It is kept per process, because imports are per process too.
_failures: dict[tuple[str, str, str], str] = {}

# The module and the description of each plugin that was loaded. Asking a module again takes a millisecond.
_described: dict[PluginRecord, tuple[Any, Any]] = {}


def failure(record: PluginRecord) -> str | None:
    """Why this process's last attempt to load the plugin failed; None if it did not fail."""
    return _failures.get(_key(record))


def load_info(record: PluginRecord, entry: EntryPoint) -> Any:
    """Import the plugin's module and return its description of `record.name`.

    Returns a TransportInfo or SamplerInfo, or None for kinds of plugins that describe nothing.

    Raises:
        PluginVersionError: it was written for another plugin API.
        PluginError: it has any other fault.
    """

    def load() -> Any:
        _check_core(record, entry)
        found = entry.load()
        if record.group in (COMMANDS, RESOLVERS, LAUNCHERS):
            return _checked_object(record, found)
        known = _described.get(record)
        if known is not None and known[0] is found:
            return known[1]
        info = _describe(record, found)
        if info is not None and info.api != PLUGIN_API:
            newer = isinstance(info.api, int) and info.api > PLUGIN_API
            raise PluginVersionError(
                f"{record} was written for echo plugin API {info.api}, and this echo-core has {PLUGIN_API}; a newer "
                + (f"echo-core is needed: {how_to_install('echo-core')}" if newer else f"plugin is needed: {how_to_replace(record.distribution)}")
            )
        _described[record] = found, info
        return info

    return _guarded(record, load)


def _checked_object(record: PluginRecord, found: object) -> None:
    if not callable(found):
        raise PluginError(f"{record.title}: {record.value} is {found!r:.100}; its entry point must name something to call, as in module:object")


def _check_core(record: PluginRecord, entry: EntryPoint) -> None:
    """Compare this echo-core with what the plugin's distribution requires, before anything of the plugin is imported: modules that were compiled
    for another echo-core fail in ways that say nothing.

    Raises:
        PluginVersionError: the plugin is for another version.
    """
    if record.version == __version__ and record.distribution in OWN:  # they are released together; reading the requirement takes time
        return
    for text in (entry.dist and entry.dist.requires) or ():
        if not _CORE.match(text):
            continue
        from packaging.requirements import InvalidRequirement, Requirement

        with contextlib.suppress(InvalidRequirement):
            wanted = Requirement(text)
            if (wanted.marker is None or wanted.marker.evaluate({"extra": ""})) and not wanted.specifier.contains(__version__, prereleases=True):
                raise PluginVersionError(
                    f"{record} was written for echo-core{wanted.specifier}, and this is echo-core {__version__}; install versions of both that "
                    f"fit together: {how_to_replace(record.distribution)}, or {how_to_replace('echo-core', f'echo-core{wanted.specifier}')}"
                )


def load_observer(record: PluginRecord, entry: EntryPoint) -> Any:
    """The module of an observer, imported. Raises PluginVersionError if it is for another echo-core, and PluginError."""

    def load() -> Any:
        _check_core(record, entry)
        return entry.load()

    return _guarded(record, load)


def import_module(record: PluginRecord, entry: EntryPoint) -> Any:
    """Import what the entry point names: a module, or an object of one. Raises PluginError."""
    return _guarded(record, entry.load)


def import_class(record: PluginRecord, path: str, base: type | None = None) -> type[Any]:
    """Import the class at `"module:Class"`, a subclass of `base` if given. Raises PluginError."""
    module, _, attribute = path.partition(":")

    def load() -> Any:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        if not isinstance(found, type):
            raise TypeError(f"{path} is not a class")
        if base is not None and not issubclass(found, base):
            raise TypeError(f"{path} is not a subclass of {base.__module__}.{base.__qualname__}")
        if base is not None:
            loaded: Any = found
            try:
                loaded.check_class()
            except PluginError as error:
                raise PluginError(f"{record.title}: {error}") from None
        return found

    result: type[Any] = _guarded(record, load)
    return result


def new_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows Echo's hooks and has no plugins."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def register(
    manager: pluggy.PluginManager, plugin: object, name: str | None, title: str
) -> None:
    """Register `plugin`. A hook that Echo does not have is an error, because Echo would never call it.

    Raises:
        PluginError: `plugin` has an unknown hook, or a hook with unknown arguments; the message starts with `title`.
    """
    for hook, forgotten in _unmarked(plugin):
        raise PluginError(
            f"{title}: {hook}() has no @hookimpl, so Echo would never call it; write @hookimpl above it"
            f" ({forgotten}), with: from echo_core.plugins.hookspecs import hookimpl"
        )
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        hooks = [hook for hook in vars(hookspecs) if hook.startswith("echo_")]
        unknown = [w for w in re.findall(r"hook '(\w+)'", str(error)) if w not in hooks]
        hint = did_you_mean(unknown[0], hooks) if unknown else ""
        raise PluginError(f"{title}: {' '.join(str(error).split())}{hint}") from error


def _unmarked(plugin: object) -> Iterator[tuple[str, str]]:
    """Functions that are named like a hook and lack its decorator, each with where it was written."""
    for hook in (name for name in vars(hookspecs) if name.startswith("echo_")):
        function = getattr(plugin, hook, None)
        if inspect.isroutine(function) and not hasattr(function, f"{PROJECT}_impl") and not hasattr(function, f"{PROJECT}_spec"):
            code = getattr(function, "__code__", None)
            yield hook, f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(function)


def _describe(record: PluginRecord, module: object) -> TransportInfo | SamplerInfo | None:
    manager = new_manager()
    register(manager, module, record.name, record.title)
    kind = KINDS[record.group]
    if not kind.hook:
        return None
    results = getattr(manager.hook, kind.hook)()
    for result in results:
        if not isinstance(result, Iterable):
            raise PluginError(f"{record.title}: {kind.hook}() returned {result!r}; return a list of it: [{kind.info.__name__}(...)]")
    infos: list[Any] = [info for result in results for info in result]
    odd = [info for info in infos if not isinstance(info, kind.info)]
    if odd:
        raise PluginError(
            f"{record.title}: {kind.hook}() returned {odd[0]!r}, which is not a "
            f"{kind.info.__name__}; return a list of these: [{kind.info.__name__}(...)]"
        )
    for info in infos:
        if record.name in (info.name, *getattr(info, "schemes", ())):
            return info  # type: ignore[no-any-return]
    if not infos:
        raise PluginError(
            f"{record.title}: {record.value} describes no {kind.noun}; it needs a function {kind.hook}() with the decorator @hookimpl"
            f" that returns [{kind.info.__name__}({record.name!r}, ...)]"
        )
    listed = ", ".join(sorted(info.name for info in infos))
    raise PluginError(
        f"{record.title}: the @hookimpl {kind.hook}() of {record.value} offers {listed}, "
        f"not {record.name!r}; give the entry point and the {kind.info.__name__} the same name"
    )


def _guarded(record: PluginRecord, load: Callable[[], Any]) -> Any:
    """Run a plugin's own code. Any exception it raises becomes a PluginError and is remembered."""
    try:
        found = load()
    except PluginError as error:
        _failures[_key(record)] = str(error)
        raise
    except Exception as error:
        if lacks_descriptors(error):
            text = f"{record.title} cannot be imported: {no_descriptors()}"
        else:
            text = f"{record.title} failed to import: {type(error).__name__}: {error}; {_repair(record)}"
        _failures[_key(record)] = text
        raise PluginError(text) from error
    _failures.pop(_key(record), None)
    return found


def _key(record: PluginRecord) -> tuple[str, str, str]:
    return record.group, record.name, record.distribution


def _repair(record: PluginRecord) -> str:
    return f"{how_to_mend(record.distribution)}, or disable it: ECHO_DISABLE_PLUGINS={record.distribution}"
