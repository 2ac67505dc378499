"""Every Python block of the README and of docs/ is run: a page's plain blocks one after another as one program, its titled blocks as files.

A page that shows two programs (README's quickstart) has them run side by side, as its reader would.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from echo_testing.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python(?: title=(\S+))?\n(.*?)^```$", re.M | re.S)
NEEDING = re.compile(r"^```python needs=(\S+)\n(.*?)^```$", re.M | re.S)
# Pages whose blocks have a test of their own.
ELSEWHERE = {"docs/tutorial.md", "docs/plugins/transport.md", "docs/plugins/sampler.md", "docs/plugins/native.md"}
READMES = [*ROOT.glob("plugins/*/README.md"), *ROOT.glob("systems/*/README.md")]
READMES.remove(ROOT / "systems/echo_rl/README.md")  # its package needs PyTorch, and its own tests run this page
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *READMES, ROOT / "examples" / "README.md"]
    if path.exists() and str(path.relative_to(ROOT)) not in ELSEWHERE and "```python" in path.read_text()
)

pytestmark = pytest.mark.needs("echo-core", "echo-samplers", "echo-shm", "echo-tcp")


def blocks(page: str) -> list[tuple[str, str]]:
    return [(title, code) for title, code in BLOCK.findall((ROOT / page).read_text())]


def run(program: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(program)],
        cwd=program.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(program.parent)},
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        output, _ = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"did not end in 90 s:\n{process.communicate()[0]}")
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("page", PAGES)
def test_plain_blocks_run(page: str, tmp_path: Path) -> None:
    plain = [code for title, code in blocks(page) if not title]
    if not plain:
        return  # this page's programs are run by the test of its titles
    program = tmp_path / "page.py"
    program.write_text("\n".join(plain))
    finish(run(program))


@pytest.mark.parametrize("page", [page for page in PAGES if any(title for title, _ in blocks(page))])
def test_titled_programs_run_side_by_side(page: str, tmp_path: Path) -> None:
    port = str(free_port())  # the page's own port may be taken on this machine
    programs = []
    for title, code in blocks(page):
        if title:
            (tmp_path / title).write_text(code.replace("50051", port))
            programs.append(tmp_path / title)
    assert len(programs) >= 2, f"{page}: a program alone needs no title"
    outputs = [finish(process) for process in [run(program) for program in programs]]
    assert any(outputs), "at least one of the programs prints what it does"


def test_the_quickstart_ends_with_several_workers(tmp_path: Path) -> None:
    """The learner publishes when all workers are there, so that none starts after the end of the job."""
    port, programs = str(free_port()), dict(blocks("README.md"))
    first = "as server:\n"
    assert programs["learner.py"].count(first) == 1
    waits = f"{first}    while len(server.peers()) < 3:\n        __import__('time').sleep(0.01)\n"
    (tmp_path / "learner.py").write_text(programs["learner.py"].replace(first, waits).replace("50051", port))
    (tmp_path / "worker.py").write_text(programs["worker.py"].replace("50051", port))
    learner, *workers = [run(tmp_path / name) for name in ("learner.py", *["worker.py"] * 3)]
    assert "step 30" in finish(learner)
    for worker in workers:
        assert "has ended the job" in finish(worker)


@pytest.mark.parametrize("library", ["gymnasium", "torch", "jax", "stable_baselines3", "openai"])
def test_blocks_that_need_a_library_run_with_it(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    pytest.importorskip("echo_adapters")
    blocks = [code for page in PAGES for needed, code in NEEDING.findall((ROOT / page).read_text()) if needed == library]
    assert blocks
    program = tmp_path / "page.py"
    for code in blocks:
        program.write_text(code)
        finish(run(program))


def test_every_link_into_the_tree_leads_somewhere() -> None:
    broken = []
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text()):
            if not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert not broken, "\n".join(broken)
