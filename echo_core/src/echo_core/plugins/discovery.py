"""Finds plugins. Listing imports none of them, selecting imports one, and a broken plugin does not break the others.

Plugins are entry points of installed distributions (see `echo_core.plugins.hookspecs`). pluggy's bulk
loader is not used: it imports every plugin, fails for all of them if one is broken, and skips a
duplicate name silently.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from typing import Any

import pluggy

from ..base.descriptors import lacks_descriptors, no_descriptors
from ..base.errors import (
    ConfigError,
    PluginConflict,
    PluginError,
    PluginNotFound,
    PluginVersionError,
    nearest,
)
from ..base.installing import how_to_install, how_to_replace
from ..store.sampler import Sampler
from ..wire.transport import Transport
from .hookspecs import SamplerInfo, TransportInfo
from .loading import (
    COMMANDS,
    KINDS,
    LAUNCHERS,
    OBSERVERS,
    RESOLVERS,
    SAMPLERS,
    TRANSPORTS,
    PluginRecord,
    failure,
    import_class,
    import_module,
    load_info,
    load_observer,
    new_manager,
    register,
)
from .provided import provided
from .resolvers import BUILT_IN

__all__ = [
    "COMMANDS",
    "LAUNCHERS",
    "OBSERVERS",
    "RESOLVERS",
    "SAMPLERS",
    "TRANSPORTS",
    "PluginHost",
    "PluginRecord",
    "client_class",
    "command",
    "installed",
    "known",
    "launcher",
    "notify",
    "observers",
    "resolver",
    "resolves",
    "sampler",
    "sampler_class",
    "transport",
    "transport_class",
]

# This is the only place where core names plugins. It serves messages that say how to install a missing one.
_EXTRAS: dict[str, dict[str, str]] = {
    TRANSPORTS: {"tcp": "tcp", "tcps": "tcp", "shm": "shm", "grpc": "grpc", "grpcs": "grpc", "rdma": "rdma", "ucx": "rdma"},
    SAMPLERS: dict.fromkeys(("fifo", "lifo", "uniform", "prioritized", "hot_cold", "min_heap", "max_heap"), "samplers"),
    LAUNCHERS: {"local": "cluster", "ray": "ray"},
}

_log = logging.getLogger("echo")


class PluginHost:
    """The plugins of this environment, under one set of `[plugins]` settings.

    It is immutable and usable from any thread. The module's functions belong to a host without settings.
    """

    def __init__(
        self,
        disable: Iterable[str] = (),
        require: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Read the settings; nothing is looked up yet.

        Args:
            disable: plugin or distribution names to ignore, in addition to those in the environment
                variable ECHO_DISABLE_PLUGINS (separated by commas or spaces).
            require: requirements such as `"echo-rdma>=0.1"`, checked by `check_required`.
            env: the mapping from which ECHO_DISABLE_PLUGINS is read now; None reads the process
                environment at every look-up.
        """
        self.require = tuple(require)
        self._disable = tuple(disable)
        self._listed = None if env is None else env.get("ECHO_DISABLE_PLUGINS", "")

    def installed(self, group: str) -> list[PluginRecord]:
        """Every plugin of `group`, sorted by name, including disabled and broken ones.

        This imports nothing. `error` reports name collisions and imports that failed earlier; use
        `examine` to try to import them all.
        """
        records = [record for record, _ in self._found(group)]
        usable = [record for record in records if not record.disabled]
        return [
            record
            if record.disabled
            else replace(record, error=_collision(record, usable) or failure(record))
            for record in records
        ]

    def examine(self, group: str) -> list[PluginRecord]:
        """Like `installed`, but loads each enabled plugin so that `error` and `info` are known.

        It serves listings that people read. If a plugin fails, its error is recorded and the next one is tried.
        """
        infos: dict[tuple[str, str], Any] = {}
        for record, entry in self._found(group):
            if not record.disabled:
                try:
                    infos[record.name, record.distribution] = load_info(record, entry)
                except PluginError:
                    continue  # `installed` shows its error
        return [
            replace(record, info=infos.get((record.name, record.distribution)))
            for record in self.installed(group)
        ]

    def transport(self, name: str) -> TransportInfo:
        """The transport with this name or address scheme. Only the module that provides it is imported.

        Raises:
            PluginNotFound: no installed and enabled plugin has this name.
            PluginConflict: two distributions provide it.
            PluginVersionError: it was written for another plugin API.
            PluginError: its import failed or it does not describe itself properly.
        """
        info: TransportInfo = self._select(TRANSPORTS, name)[1]
        return info

    def sampler(self, name: str) -> SamplerInfo:
        """The sampler with this name; raises like `transport`."""
        info: SamplerInfo = self._select(SAMPLERS, name)[1]
        return info

    def transport_class(self, name: str) -> type[Transport]:
        """The `Transport` subclass of this name or scheme, imported; raises like `transport`."""
        record, info = self._select(TRANSPORTS, name)
        found = import_class(record, info.factory, Transport)
        if found.scheme not in (record.name, *info.schemes):
            raise PluginError(
                f"{record.title}: {info.factory} has the scheme {found.scheme!r}, so clients would look for another transport; "
                f"write scheme = {record.name!r}, as its entry point is named"
            )
        return found

    def client_class(self, name: str) -> type[Any]:
        """The transport's own client class (`TcpClient`), imported; raises like `transport`.

        Raises:
            PluginError: also if the transport has no client class.
        """
        record, info = self._select(TRANSPORTS, name)
        if info.client is None:
            raise PluginError(
                f'{record.title} has no client class of its own; use Client("{name}://...")'
            )
        return import_class(record, info.client)

    def sampler_class(self, name: str) -> type[Sampler]:
        """The `Sampler` subclass of this name, imported; raises like `transport`."""
        record, info = self._select(SAMPLERS, name)
        return import_class(record, info.factory, Sampler)

    def command(self, name: str) -> Any:
        """The command of this name for `echoctl`, imported: whatever its entry point names. Raises like `transport`."""
        return self._object(COMMANDS, name)

    def resolver(self, scheme: str) -> Any:
        """The function that finds servers of addresses with this scheme, imported. Raises like `transport`. Echo's own schemes win."""
        return BUILT_IN[scheme] if scheme in BUILT_IN else self._object(RESOLVERS, scheme)

    def resolves(self, scheme: str) -> bool:
        """Whether addresses with this scheme name no transport but a resolver."""
        others = (record.name for record, _ in self._found(RESOLVERS))
        return (scheme in BUILT_IN or scheme in others) and all(record.name != scheme for record, _ in self._found(TRANSPORTS))

    def launcher(self, name: str) -> Any:
        """The function that starts the shards and workers of `[cluster]`, imported. Raises like `transport`."""
        return self._object(LAUNCHERS, name)

    def _object(self, group: str, name: str) -> Any:
        record, entry = self._chosen(group, name)
        load_info(record, entry)
        return import_module(record, entry)

    def observers(self, *extra: object) -> pluggy.PluginManager:
        """A plugin manager in which every observer of group `echo` and all `extra` objects are registered.

        An observer whose import fails is logged, listed with its error and left out. An observer that
        implements a hook which Echo does not have is an error, because it would never be called.

        Raises:
            PluginError: an observer implements an unknown hook, or a hook with unknown arguments.
        """
        manager = new_manager()
        for record, entry in self._found(OBSERVERS):
            if record.disabled:
                continue
            try:
                module = load_observer(record, entry)
            except PluginError as error:
                _log.warning("%s", error)
                continue
            # pluggy refuses a second plugin of the same name, so the names are made unique.
            register(manager, module, f"{record.distribution}:{record.name}", record.title)
        for plugin in extra:
            register(manager, plugin, None, f"observer {plugin!r}")
        return manager

    def check_required(self) -> None:
        """Check every requirement of `[plugins] require` against what is installed.

        Raises:
            ConfigError: a requirement cannot be read, or names a disabled plugin or distribution.
            PluginNotFound: the distribution is not installed.
            PluginVersionError: it has another version.
        """
        for text in self.require:
            self._check_requirement(text)

    def _check_requirement(self, text: str) -> None:
        from packaging.requirements import InvalidRequirement, Requirement

        where = "[plugins] require"
        try:
            wanted = Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f'{where}: {text!r} must be written like "echo-rdma>=0.1": {reason}'
            ) from None
        by = self._disabled_by(wanted.name)
        if by:
            raise ConfigError(f"{where}: {wanted.name} is required and disabled by {by}; take it out of one of the two")
        fix = f"{how_to_replace(wanted.name, text)}, or take it out of {where}"
        try:
            have = version(wanted.name)
        except PackageNotFoundError:
            raise PluginNotFound(f"{where}: {wanted.name} is not installed; {fix}") from None
        if not wanted.specifier.contains(have, prereleases=True):
            raise PluginVersionError(
                f"{where}: {text} is required, but {wanted.name} {have} is installed; {fix}"
            )

    def _disabled_by(self, *names: str) -> str | None:
        wanted = {_canonical(name) for name in names}
        if not wanted.isdisjoint(map(_canonical, self._disable)):
            return "[plugins] disable"
        listed = self._listed
        if listed is None:
            listed = os.environ.get("ECHO_DISABLE_PLUGINS", "")
        if not wanted.isdisjoint(map(_canonical, re.split(r"[,\s]+", listed))):
            return "ECHO_DISABLE_PLUGINS"
        return None

    def _found(self, group: str) -> list[tuple[PluginRecord, EntryPoint]]:
        """Raises PluginError if no file descriptor is left."""
        found = {}
        try:
            if lacks_descriptors():
                raise _unread(group)
            for entry, name, number in provided(group):
                disabled = self._disabled_by(entry.name, name)
                found[PluginRecord(group, entry.name, entry.value, name, number, disabled)] = entry
        except OSError as error:
            if lacks_descriptors(error):
                raise _unread(group) from error
            raise
        return sorted(found.items(), key=lambda pair: (pair[0].name, pair[0].distribution))

    def _select(self, group: str, name: str) -> tuple[PluginRecord, Any]:
        record, entry = self._chosen(group, name)
        return record, load_info(record, entry)

    def _chosen(self, group: str, name: str) -> tuple[PluginRecord, EntryPoint]:
        found = [pair for pair in self._found(group) if pair[0].name == name]
        usable = [pair for pair in found if not pair[0].disabled]
        if len(usable) > 1:
            raise PluginConflict(_collision(usable[0][0], [record for record, _ in usable]))
        if not usable:
            raise self._missing(group, name, [record for record, _ in found])
        return usable[0]

    def _missing(self, group: str, name: str, disabled: list[PluginRecord]) -> PluginNotFound:
        noun, known = KINDS[group].noun, _EXTRAS.get(group, {})
        if lacks_descriptors():
            raise _unread(group)
        if disabled:
            record = disabled[0]
            return PluginNotFound(
                f"{record.title} is disabled by {record.disabled}; "
                f"take {name!r} or {record.distribution!r} out of it"
            )
        if name in known:
            return PluginNotFound(f"{noun} {name!r} is not installed; {how_to_install(f'echo-core[{known[name]}]')}")
        have = sorted({record.name for record, _ in self._found(group) if not record.disabled})
        near = nearest(name, [*have, *known])
        hint = "" if near is None else f"; did you mean {near!r}?"
        if near in known and near not in have:
            hint += f" Then {how_to_install(f'echo-core[{known[near]}]')}"
        return PluginNotFound(
            f"no {noun} named {name!r} (installed: {', '.join(have) or 'none'}){hint}"
        )


def known() -> list[tuple[str, str, str]]:
    """Transports, samplers and launchers of Echo's other distributions, installed or not: `(group, name, requirement)`."""
    return [(group, name, f"echo-core[{extra}]") for group, names in _EXTRAS.items() for name, extra in names.items()]


def notify(manager: pluggy.PluginManager, hook: str, **arguments: Any) -> None:
    """Call `hook` of every observer. If one raises, its exception is logged and the others are still called.

    It serves the reporting hooks. `echo_configure` is called directly (`manager.hook.echo_configure`),
    because an exception in it is meant to stop the start.
    """
    plugins = manager.get_plugins()
    for plugin in plugins:
        only = manager.subset_hook_caller(hook, plugins - {plugin})
        try:
            only(**arguments)
        except Exception:
            _log.exception("observer %s failed in %s", manager.get_name(plugin), hook)


def _collision(record: PluginRecord, usable: list[PluginRecord]) -> str | None:
    rivals = [other for other in usable if other.name == record.name]
    if record.group == OBSERVERS or len(rivals) < 2:  # nobody selects observers by name
        return None
    listed = ", ".join(map(str, rivals))
    return (
        f"{record.name!r} is provided by more than one distribution: {listed}; "
        f"uninstall or disable one (ECHO_DISABLE_PLUGINS={rivals[-1].distribution})"
    )


def _unread(group: str) -> PluginError:
    importlib.invalidate_caches()  # a folder that could not be listed is kept as an empty one
    return PluginError(f"the installed plugins of {group} cannot be read: {no_descriptors()}")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


default = PluginHost()
installed = default.installed
transport = default.transport
command = default.command
resolver = default.resolver
launcher = default.launcher
resolves = default.resolves
transport_class = default.transport_class
client_class = default.client_class
sampler = default.sampler
sampler_class = default.sampler_class
observers = default.observers
