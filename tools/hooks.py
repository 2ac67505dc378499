"""Write docs/plugins/hooks.md from hookspecs.py, so that the reference cannot differ from the code.

python tools/hooks.py            # write;  with --check: exit code 1 if the page differs
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

from echo_core.plugins import hookspecs
from echo_core.plugins.loading import COMMANDS, LAUNCHERS, OBSERVERS, RESOLVERS, SAMPLERS, TRANSPORTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "plugins" / "hooks.md"
HEAD = f"""# Reference: hooks

<!-- Made by tools/hooks.py from echo_core/plugins/hookspecs.py: change that, and run it again. -->

A plugin marks functions with `@hookimpl` and names its module in an entry point of one of three groups: `{TRANSPORTS}`, `{SAMPLERS}`, or
`{OBSERVERS}` for observers, which implement any of the hooks that report. An object with such methods can also be given to one server:
`Server(observers=[...])`. Commands for `echoctl` ([more](../echoctl.md)) and functions that find servers ([more](../finding-servers.md)) have
the groups `{COMMANDS}` and `{RESOLVERS}` and need no hook, and so have those that start clusters ([more](../ray.md)): `{LAUNCHERS}`.
The names `hookimpl`, `TransportInfo` and `SamplerInfo` are those of `echo_core.plugins.hookspecs`.
This is plugin API {hookspecs.PLUGIN_API}: see [what stays](versions.md).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, function in hooks().items():
        parts.append(f"## `{name}`\n\n```text\n{name}{inspect.signature(function)}\n```\n\n{plain(function)}\n")
    for cls in (hookspecs.TransportInfo, hookspecs.SamplerInfo):
        fields = ", ".join(map(shown, dataclasses.fields(cls)))
        summary, _, attributes = plain(cls).partition("Attributes:")
        rows = []
        for line in inspect.cleandoc(attributes).splitlines():
            if line.startswith(" ") or ":" not in line.split(" ")[0]:
                rows[-1] += " " + line.strip()
            else:
                rows.append(f"* `{line.partition(':')[0]}`: {line.partition(':')[2].strip()}")
        parts.append(f"## `{cls.__name__}`\n\n```text\n{cls.__name__}({fields})\n```\n\n{summary.strip()}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def shown(field: dataclasses.Field[object]) -> str:
    return field.name if field.default is dataclasses.MISSING else f"{field.name} = {field.default!r}"


def hooks() -> dict[str, object]:
    """Every hook, in the order of the file."""
    return {name: value for name, value in vars(hookspecs).items() if name.startswith("echo_") and inspect.isfunction(value)}


def plain(thing: object) -> str:
    return inspect.getdoc(thing) or ""


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
