"""Compare the commands that the pages show with the installed tools: each subcommand and each option of `echoctl`, and each `python -m echo_...`.

    python tools/commands.py      # with a Python in which they are installed

It prints how many commands it compared. Those that the tools do not know are listed, and the exit code is 1.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import click

from echoctl.command import root

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "SECURITY.md", "docs/**/*.md", "*/README.md", "plugins/*/README.md", "systems/*/README.md"]
FENCE = re.compile(r"^```(?:console|bash|sh)?\n(.*?)^```$", re.M | re.S)
LINE = re.compile(r"^(?:\$ )?((?:echoctl|python3? -m echo_\w+)\b.*)$", re.M)
INLINE = re.compile(r"`((?:echoctl|python3? -m echo_[\w.]+) [^`]+)`")
PLACEHOLDER = re.compile(r"[\[A-Z].*|.*://.*|\.\.\.")  # ADDRESS, [ADDRESS], tcp://learner:5555


def shown() -> dict[str, str]:
    """Each command that a page shows, and the first page that shows it."""
    found: dict[str, str] = {}
    for page in [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]:
        text = page.read_text()
        for command in [line for block in FENCE.findall(text) for line in LINE.findall(block)] + INLINE.findall(text):
            found.setdefault(command, str(page.relative_to(ROOT)))
    return found


def words(command: str) -> list[list[str]]:
    """The words of a command, without what a shell does with its output. `up|down` stands for two commands."""
    parts = shlex.split(command, comments=True)
    end = next((number for number, part in enumerate(parts) if part in ("|", "&&", "&", ">", ";")), len(parts))
    return [list(chosen) for chosen in product(*(part.split("|") for part in parts[:end]))]


def unknown(tool: click.Command, given: list[str]) -> str | None:
    """What the tool does not know of these words after its name, if anything."""
    context, rest, arguments = click.Context(tool, info_name="echoctl"), iter(given), 0
    for word in rest:
        command = context.command
        if word.startswith("-") and word != "-":
            name, _, value = word.partition("=")
            options = [option for option in command.get_params(context) if isinstance(option, click.Option) and name in option.opts + option.secondary_opts]
            if not options:
                return f"{context.command_path} has no option {name}"
            if not (options[0].is_flag or options[0].count or value):
                next(rest, None)
        elif isinstance(command, click.Group):
            inner = command.get_command(context, word)
            if inner is None:
                return None if PLACEHOLDER.fullmatch(word) else f"{context.command_path} has no command {word}"
            context = click.Context(inner, parent=context, info_name=word)
        else:
            arguments += 1
    slots = [parameter.nargs for parameter in context.command.params if isinstance(parameter, click.Argument)]
    if arguments > sum(slots) and -1 not in slots:
        return f"{context.command_path} takes {sum(slots)} arguments and not {arguments}"
    return None


def unknown_module(module: str) -> str | None:
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False)
    return f"python -m {module} --help ends with code {done.returncode}: {done.stderr.strip()[-300:]}" if done.returncode else None


def main() -> int:
    wrong, count = [], 0
    for command, page in shown().items():
        for first, *rest in words(command):
            count += 1
            complaint = unknown(root, rest) if first == "echoctl" else unknown_module(rest[1])
            wrong += [f"{page}: `{command}`: {complaint}"] if complaint else []
    print("\n".join(wrong) or f"the installed tools know the {count} commands of the pages")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
