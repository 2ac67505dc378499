"""Makes a JSON Schema (2020-12) of Echo's configuration from the option dataclasses of core and of the installed plugins."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Union

from ..base.errors import PluginError, PluginNotFound
from ..base.option_reader import is_dataclass, is_required, kind_of, option_fields
from ..plugins import discovery
from ..plugins.discovery import PluginHost
from ..plugins.replay_package import replay_module
from .sections import ClusterConfig, PluginsConfig, SecurityConfig, ServerConfig, SharedConfig

__all__ = ["configuration_schema", "options_schema", "typed_schema"]

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", Path: "string", bytes: "string"}


def options_schema(cls: type[Any]) -> dict[str, Any]:
    """The schema of a table that `build_options(cls, ...)` takes. A field that only code can give (its type is another class) takes any value."""
    properties, required = {}, []
    for name, (field, hint) in option_fields(cls).items():
        described = _type(hint)
        if is_required(field):
            required.append(name)
        elif isinstance(field.default, (str, int, float, bool)) and field.repr:
            described = {**described, "default": field.default}
        properties[name] = described
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def configuration_schema(plugins: PluginHost | None = None) -> dict[str, Any]:
    """The schema of a whole configuration file. It leaves out plugins that cannot be loaded, so their tables count as mistakes."""
    plugins = plugins or discovery.default
    transports = _choices(plugins, discovery.TRANSPORTS)
    samplers = _choices(plugins, discovery.SAMPLERS)
    server = options_schema(ServerConfig)
    del server["properties"]["transports"]
    server.pop("required", None)
    address = {"type": "string", "description": "an address such as scheme://host:port?option=value"}
    one = {"anyOf": [address, *transports]}
    server["properties"]["transport"] = {"anyOf": [one, {"type": "array", "items": one}]}
    server["properties"]["weights_from"] = address
    server["properties"]["sampler"] = {"anyOf": [{"type": "string"}, *samplers]}
    del server["properties"]["tables"]
    with suppress(PluginNotFound):
        section = replay_module("config.section", "the schema of tables")
        server["properties"]["tables"] = {"type": "array", "items": section.table_schema(samplers)}
    client = _client(plugins)
    security = options_schema(SecurityConfig)
    security["properties"]["token"] = {"type": "string"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Echo",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "shared": options_schema(SharedConfig),
            "server": server,
            "client": {"type": "object", "properties": client, "additionalProperties": False},
            "security": security,
            "plugins": options_schema(PluginsConfig),
            "cluster": options_schema(ClusterConfig),
            "example": {"type": "object", "description": "what a sample looks like: nested tables; a leaf has a dtype and a shape"},
        },
    }


def _client(plugins: PluginHost) -> dict[str, Any]:
    """The properties of [client]: its own keys, and the connect options of every transport with the names of the transports that know them.

    Only the address says which transport will be used, so an editor is offered the options of all of them.
    """
    own = {"address": {"type": "string"}, "timeout": {"type": "number", "default": 30.0}, "name": {"type": "string"}, "weights": {"type": "string"}}
    forms: dict[str, list[dict[str, Any]]] = {}
    users: dict[str, list[str]] = {}
    for record in plugins.examine(discovery.TRANSPORTS):
        if record.error is not None or record.disabled is not None:
            continue
        try:
            cls = plugins.transport_class(record.name)
        except PluginError:
            continue
        for key, described in options_schema(cls.ConnectOptions)["properties"].items():
            if key not in own and key != "token":  # the token belongs in [security]
                users.setdefault(key, []).append(record.name)
                if described not in forms.setdefault(key, []):
                    forms[key].append(described)
    for key, found in forms.items():
        own[key] = {**(found[0] if len(found) == 1 else {"anyOf": found}), "description": f"of {', '.join(users[key])}"}
    return own


def _choices(plugins: PluginHost, group: str) -> list[dict[str, Any]]:
    """One schema for each installed plugin, with its options and a `type` that names it."""
    found = []
    for record in plugins.examine(group):
        if record.error is not None or record.disabled is not None:
            continue
        try:
            cls = plugins.transport_class(record.name) if group == discovery.TRANSPORTS else plugins.sampler_class(record.name)
        except PluginError:
            continue
        schema = options_schema(cls.Options)
        schema["properties"] = {"type": {"const": record.name}, **schema["properties"]}
        schema["required"] = ["type", *schema.get("required", [])]
        summary = getattr(record.info, "summary", "")
        found.append({"title": f"{record.name}: {summary}" if summary else record.name, **schema})
    return found


def typed_schema(name: str, options: type[Any]) -> dict[str, Any]:
    """The schema of a table whose `type` determines its options."""
    schema = options_schema(options)
    properties = {"type": {"const": name}, **schema["properties"]}
    return {"title": name, **schema, "properties": properties, "required": ["type", *schema.get("required", [])]}


def _type(hint: Any) -> dict[str, Any]:
    kind, members = kind_of(hint)
    if kind is Union:
        parts = [_type(member) for member in members if member is not type(None)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}  # TOML has no null; leaving the key out means None
    if kind is Literal:
        return {"enum": list(members)}
    if kind in (tuple, list):
        return {"type": "array", **({"items": _type(members[0])} if members else {})}
    if kind in (dict, Mapping):
        return {"type": "object"}
    if is_dataclass(kind):
        return options_schema(kind)
    return {"type": _NAMES[kind]} if kind in _NAMES else {}
