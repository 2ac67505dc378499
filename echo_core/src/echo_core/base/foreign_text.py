"""Text that somebody else may have chosen, such as a leaf's path in a worker's spec, before people read it.

Control characters would act on a terminal, and a line break would begin a line that looks like a record of our own. Such characters
are shown as Python writes them in a literal. This happens in `EchoError.__str__`, in every line of the logger `echo`, and in what
`echoctl` prints, so that the code that writes a message does not have to think of it.
"""

from __future__ import annotations

import logging

__all__ = ["escaped"]


def escaped(text: str, keep: str = "") -> str:
    """`text` with each character that is not printable as an escape sequence: `\\x1b`, `\\n`, `\\u202e`. Characters of `keep` stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


class _OneLine(logging.Filter):
    """Makes each record of a logger one line. The lines of a traceback are indented, so that none of them looks like a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = escaped(message), ()
        if record.exc_info and not record.exc_text:
            lines = logging.Formatter().formatException(record.exc_info).split("\n")
            record.exc_text = "\n".join("  " + escaped(line) for line in lines)
        return True


logging.getLogger("echo").addFilter(_OneLine())  # once, because a module is run once
