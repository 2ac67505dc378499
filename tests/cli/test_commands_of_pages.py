"""tools/commands.py finds the commands that the pages show, and says which of them the installed tools do not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.needs("echoctl")


def run(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(root / "tools" / "commands.py")], capture_output=True, text=True, check=False)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the tool and one page, whose text a test writes."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "commands.py").write_text((ROOT / "tools" / "commands.py").read_text())
    return tmp_path


def test_commands_that_the_tools_know(repository: Path) -> None:
    (repository / "README.md").write_text(
        "`echoctl top ADDRESS` and `echoctl plugins list|show`\n"
        "```console\n$ echoctl tap tcp://127.0.0.1:5555 -n 1 --json | jq .sample    # one\n$ python -m echo_core.nothing_here\n```\n"
    )
    done = run(repository)
    assert done.returncode == 1 and done.stdout.count("\n") == 1, done.stdout + done.stderr
    assert "README.md: `python -m echo_core.nothing_here`" in done.stdout, "a module that is not there is found wrong, and nothing else"


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("echoctl pop ADDRESS", "echoctl has no command pop"),
        ("echoctl plugins lost", "echoctl plugins has no command lost"),
        ("echoctl top --web --colour red", "echoctl top has no option --colour"),
        ("echoctl top a b", "echoctl top takes 1 arguments and not 2"),
    ],
)
def test_what_a_tool_does_not_know_is_named_with_its_page(repository: Path, command: str, complaint: str) -> None:
    (repository / "README.md").write_text(f"Use `{command}`.")
    done = run(repository)
    assert done.returncode == 1 and done.stdout == f"README.md: `{command}`: {complaint}\n", done.stdout + done.stderr
