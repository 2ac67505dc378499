"""Sphinx, for `nox -s docs`."""

import re as _re
from importlib.metadata import version as _version
from pathlib import Path as _Path

project = "Echo"
author = "The Echo authors"
release = _version("echo-core")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Echo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_theme_options = {"source_repository": "https://github.com/echo-rl/echo/", "source_branch": "main", "source_directory": "docs/"}
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # attributes of one name (`keys`) in several classes: text, and no link is meant

_HERE = _Path(__file__).resolve().parent
_REPOSITORY = "https://github.com/echo-rl/echo/blob/main"


def _code_blocks(lines):
    """An indented block after an empty line is code, at the first level of a docstring; sections (`Args:`) have no empty line there."""
    out, inside = [], False
    for before, line in zip(["", *lines], lines):
        starts = line.startswith("    ") and not before.strip() and not inside and "::" not in out[-2:]
        if starts and out:
            out += ["::", ""]
        inside = line.startswith(" ") or (inside and not line.strip())
        out.append(line)
    return out


def _as_rst(app, what, name, obj, options, lines):
    """Docstrings are written to be read as text, in Markdown's manner: `code` becomes a literal, and every other sign stands for itself."""
    lines[:] = _code_blocks(lines)
    if "::" in lines:  # what is indented below it is taken as it is
        head, body = lines[: lines.index("::")], lines[lines.index("::") :]
        after = next((i for i, line in enumerate(body[2:], 2) if line and not line.startswith(" ")), len(body))
        _as_rst(app, what, name, obj, options, head)
        rest = body[after:]
        _as_rst(app, what, name, obj, options, rest)
        lines[:] = head + body[:after] + rest
        return
    parts = _re.split(r"`([^`]+)`", "\n".join(lines).replace("``", "`"))
    text = [f"``{part}``" if odd % 2 else _re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for odd, part in enumerate(parts)]
    for odd in range(1, len(text), 2):  # a literal must not touch a word: `Table`s
        text[odd] = "\\ " * text[odd - 1][-1:].isalnum() + text[odd] + "\\ " * text[odd + 1][:1].isalnum()
    lines[:] = "".join(text).split("\n")


def _links_within(app, name, source):
    """A link to a file of the repository that is not a page of this site leads to the repository."""

    def stays(found):
        text, target = found[1], found[2]
        path = (_HERE / name).parent.joinpath(target.partition("#")[0]).resolve()
        if path.is_relative_to(_HERE):
            return found[0]
        return f"[{text}]({_REPOSITORY}/{path.relative_to(_HERE.parent)})"

    source[0] = _re.sub(r"\[([^\]]+)\]\((\.\.?/[^):]+)\)", stays, source[0])


def _titles(app, name, source):
    """Which file a block of code is goes above it."""
    source[0] = _re.sub(r"(?m)^```(\w+) title=(\S+)$", r"```{code-block} \1\n:caption: `\2`\n", source[0])


def setup(app):
    app.connect("autodoc-process-docstring", _as_rst, priority=400)  # before napoleon
    app.connect("source-read", _links_within)
    app.connect("source-read", _titles)
