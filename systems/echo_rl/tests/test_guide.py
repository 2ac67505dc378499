"""Every Python block of docs/rl-engine.md, docs/rl-environments.md and docs/rl-benchmark.md runs, each as a program of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from echo_rl import environments
from echo_rl.evaluation import baselines

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {"rl-engine.md": 4, "rl-environments.md": 4, "rl-benchmark.md": 2}
BLOCKS = [(page, *block) for page in PAGES for block in re.findall(r"^```python needs=(\w+)\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)]


def test_there_are_blocks() -> None:
    assert all(sum(name == page for name, *_ in BLOCKS) >= least for page, least in PAGES.items())


@pytest.mark.parametrize(("page", "library", "code"), BLOCKS, ids=[str(i) for i in range(len(BLOCKS))])
def test_a_block(page: str, library: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(environments, "_registered", {})
    monkeypatch.setattr(baselines, "_BASELINES", dict(baselines._BASELINES))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(DOCS / page), "exec"), {"__name__": "__main__"})
