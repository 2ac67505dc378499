"""docs/benchmarks.md and the README show the recorded run and no other figures, and another run can be recorded."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "benchpage.py"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with the pages, their run and the tool."""
    for name in ("README.md", "docs/benchmarks.md", "docs/benchmarks.json", "docs/benchmarks-replay.json", "tools/benchpage.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    return tmp_path


def tool(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "tools" / "benchpage.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_page_is_what_the_tool_makes_of_the_recorded_run() -> None:
    done = tool(ROOT, "--check")
    assert done.returncode == 0, f"run: python tools/benchpage.py\n{done.stderr}"


@pytest.mark.parametrize("name", ["docs/benchmarks.md", "README.md"])
def test_a_figure_changed_by_hand_is_seen(copy: Path, name: str) -> None:
    page = copy / name
    assert tool(copy, "--check").returncode == 0
    page.write_text(re.sub(r"(?m)^(\| .*?)(\d+)×", r"\g<1>1\2×", page.read_text()))
    assert tool(copy, "--check").returncode == 1
    page.write_text("no marks")
    done = tool(copy)
    assert done.returncode != 0 and "has lost its marks" in done.stderr and page.read_text() == "no marks"


@pytest.mark.parametrize("name", ["benchmarks.json", "benchmarks-replay.json"])
def test_another_run_is_recorded(copy: Path, tmp_path: Path, name: str) -> None:
    run = json.loads((copy / "docs" / name).read_text())
    for result in run["results"]:
        for one in result["runs"]:
            one["figures"] = {key: 3 * value for key, value in one.get("figures", {}).items()}
    (tmp_path / "new.json").write_text(json.dumps(run))
    before = (copy / "docs" / "benchmarks.md").read_text()
    assert tool(copy, str(tmp_path / "new.json")).returncode == 0
    assert json.loads((copy / "docs" / name).read_text()) == run
    after = (copy / "docs" / "benchmarks.md").read_text()
    assert after != before and tool(copy, "--check").returncode == 0
    assert after.partition("<!-- made")[0] == before.partition("<!-- made")[0], "the rest is left as it is"
    assert tool(copy, str(copy / "docs" / "benchmarks.md")).returncode != 0, "no result file"


def test_the_tool_is_a_module_without_side_effects() -> None:
    spec = importlib.util.spec_from_file_location("benchpage", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="has lost its marks"):
        module.page("page.md", "nothing", "benchmarks.json", "figures")
