"""Write echoctl/meanings.py, the texts of Prometheus' # HELP lines, from the tables of docs/stats.md.

    python tools/meanings.py            # writes the module
    python tools/meanings.py --check    # writes nothing; the exit code is 1 if the module does not agree with the page
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "stats.md"
MODULE = ROOT / "echoctl" / "src" / "echoctl" / "meanings.py"
HEAD = '"""What each figure of `Server.stats()` means, for Prometheus. Made by tools/meanings.py from docs/stats.md: change neither here."""\n'


def meanings(page: str) -> dict[str, str]:
    """`{"table/size": meaning}` of every row of the page. Names of workers, tables and transports are left out of the keys."""
    found: dict[str, str] = {}
    for names, meaning in re.findall(r"^\| (`(?:clients|store|latency|weights|worker|relay|table|transport)/[^|]*)\| ([^|]*?) *\|$", page, re.M):
        for name in re.findall(r"`([^`]+)`", names):
            key = re.sub(r"^(worker|relay|table|transport)/[^/]+/", r"\1/", name)
            found.setdefault(key.removesuffix("_*"), plain(meaning))  # what every transport has comes first on the page
    return found


def plain(text: str) -> str:
    """Markdown as plain text: links become their words."""
    return re.sub(r"`", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)).strip()


def module(page: str) -> str:
    lines = [f"    {json.dumps(key)}: {json.dumps(meaning, ensure_ascii=False)},\n" for key, meaning in meanings(page).items()]
    return f'{HEAD}# ruff: noqa: E501\n\nfrom __future__ import annotations\n\n__all__ = ["MEANINGS"]\n\nMEANINGS = {{\n{"".join(lines)}}}\n'


def main() -> int:
    text = module(PAGE.read_text())
    if "--check" not in sys.argv[1:]:
        MODULE.write_text(text)
    elif not MODULE.exists() or MODULE.read_text() != text:
        print(f"{MODULE.relative_to(ROOT)} does not agree with docs/stats.md; run: python tools/meanings.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
