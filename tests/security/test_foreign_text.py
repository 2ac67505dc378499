"""The words of peers, where people read them: no control characters, and no lines that look like our own."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from strangers import EXAMPLE

from echo_core import Client, EchoError, Server, SpecError
from echo_core.base.errors import UnknownKeyError, UnknownTableError
from echo_core.base.foreign_text import escaped
from echo_core.wire.protocol import pack_error, parse_reply

EVIL = "\x1b[2J\x1b]0;owned\x07\n2026-11-25 09:00:00 echo: checkpoint written\r\u202e"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the logger `echo` writes by an ordinary handler."""
    text, log = io.StringIO(), logging.getLogger("echo")
    handler = logging.StreamHandler(text)
    log.addHandler(handler)
    yield text
    log.removeHandler(handler)


def lines(text: str) -> list[str]:
    assert all(c == "\n" or c.isprintable() for c in text), text
    assert not any(line.startswith("2026") for line in text.split("\n")), text
    return text.splitlines()


@pytest.mark.needs("echo-samplers")
def test_a_leaf_of_a_workers_spec(serve: Callable[..., Server], written: io.StringIO) -> None:
    server = serve()
    with pytest.raises(SpecError) as error:
        Client(server.address, {**EXAMPLE, EVIL: np.zeros(1, np.float32)}, timeout=20)
    server.close()
    assert len(lines(written.getvalue())) == 1 and r"\x1b[2J" in written.getvalue()
    assert "owned" in str(error.value) and len(lines(str(error.value))) == 1


@pytest.mark.needs("echo-samplers")
def test_a_leaf_of_a_learners_spec(serve: Callable[..., Server]) -> None:
    server = Server({**EXAMPLE, EVIL: np.zeros(1, np.float32)}, 4, "tcp://127.0.0.1:0").start()
    with server, pytest.raises(SpecError) as error:
        Client(server.address, EXAMPLE, timeout=20)
    assert len(lines(str(error.value))) == 1


def test_tracebacks_and_their_messages(written: io.StringIO) -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        logging.getLogger("echo").exception("request %s failed", EVIL)
    first, *rest = lines(written.getvalue())
    assert first.startswith(r"request \x1b[2J") and all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("kind", [EchoError, SpecError, UnknownTableError, UnknownKeyError])
def test_errors_as_text(kind: type[EchoError]) -> None:
    assert str(kind(f"one\n{EVIL}")) == "one\n" + escaped(EVIL, keep="\n")
    assert str(kind("'plain' text")) == "'plain' text"
    with pytest.raises(EchoError) as error:
        parse_reply(pack_error(kind(EVIL)))
    assert len(lines(str(error.value))) == 1


def test_what_is_printable_stays() -> None:
    for text in ("", "λ → 学習", 'a\\b "c"'):
        assert escaped(text) == text
    assert escaped("a\tb\n\ud800", keep="\t") == r"a" + "\t" + r"b\n\ud800"
