"""Both ends agree, however their bytes are cut, and on which spec."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from talking import CLIENT, INCARNATION, OTHER, SPEC, TOKEN, body_of, client, message, server, talk

from echo_core.base.errors import HandshakeRefused, ProtocolError, SpecError
from echo_core.base.transport_options import SILENCE
from echo_core.spec.spec import Spec


@pytest.mark.parametrize("tokens", [(), (TOKEN,), (b"older", TOKEN), (TOKEN, b"newer")])
def test_both_ends_agree(tokens: tuple[bytes, ...]) -> None:
    c, s = client(token=TOKEN if tokens else None, base=17, name="w0"), server(tokens=tokens)
    assert talk(c, s) == (None, None)
    assert c.done and s.done and c.leftover == s.leftover == s.refusal == b""
    assert c.peer == {"server": INCARNATION, "auth": "token" if tokens else "none", "silence": SILENCE, "labels": False}
    assert s.peer["client"] == CLIENT and s.peer["base"] == 17 and s.peer["name"] == "w0"
    assert s.peer["pid"] == os.getpid() and s.peer["role"] == "worker"


@pytest.mark.parametrize(("table", "taken"), [("", True), ("rows", True), ("steps", False)])
def test_the_learner_says_which_tables_take_labels(table: str, taken: bool) -> None:
    c, s = client(table=table), server(tables={"rows": SPEC, "steps": SPEC}, labels={"", "rows"})
    assert talk(c, s) == (None, None)
    assert c.peer["labels"] is taken


def test_a_worker_with_labelled_samples_refuses_a_learner_that_takes_none() -> None:
    error, _ = talk(client(labels=True), server())
    assert isinstance(error, SpecError) and "may have priorities and policy versions, and this learner takes none" in str(error)
    assert talk(client(labels=True), server(labels={""})) == (None, None)


def test_a_learner_may_hold_a_client_until_its_id_is_free() -> None:
    c, s = client(session="5e" * 16, silence=7.5), server(hold=True, silence=2.5)
    spec = c.receive(s.receive(c.receive(s.receive(c.start()))))
    assert s.receive(spec) == b"" and s.agreed and not s.done
    assert s.receive(b"early") == b""  # belongs to the frames
    assert (s.peer["session"], s.peer["silence"], c.peer["silence"]) == ("5e" * 16, 7.5, 2.5)
    c.receive(s.accept())
    assert c.done and s.done and s.leftover == b"early"


def test_a_held_client_can_be_refused() -> None:
    c, s = client(), server(hold=True)
    s.receive(c.receive(s.receive(c.receive(s.receive(c.start())))))
    with pytest.raises(HandshakeRefused, match="in use by joe") as caught:
        c.receive(s.refuse("identity", "the id is in use by joe"))
    assert caught.value.code == "identity" and not s.done


def test_the_token_never_travels() -> None:
    c, s = client(), server()
    heard = hello = c.start()
    heard += (challenge := s.receive(hello))
    heard += (proof := c.receive(challenge))
    heard += (welcome := s.receive(proof))
    heard += (spec := c.receive(welcome))
    heard += s.receive(spec)
    assert TOKEN not in heard and TOKEN.hex().encode() not in heard


def test_names_of_strangers_cannot_control_a_terminal() -> None:
    s = server()
    hello = body_of(client().start()) | {"name": "\x1b[2Jx" + "y" * 999, "host": 3, "pid": "4"}
    s.receive(message(1, hello))
    assert s.peer["name"].startswith("?[2Jxyyy") and len(s.peer["name"]) == 128
    assert s.peer["host"] == "3" and s.peer["pid"] == 0


@given(st.data())
def test_any_split_of_the_bytes_gives_the_same_result(data: st.DataObject) -> None:
    c, s = client(), server()
    beyond = b"frames of the worker", b"frames of the learner"
    pending, ends = {s: c.start(), c: b""}, {s: c, c: s}
    while pending[s] or pending[c]:
        for end in (s, c):
            n = data.draw(st.integers(0, len(pending[end])), label="bytes")
            if not n and not pending[ends[end]]:
                n = len(pending[end])
            portion, pending[end] = pending[end][:n], pending[end][n:]
            was_done = end.done
            pending[ends[end]] += end.receive(portion)
            if end.done and not was_done:
                pending[ends[end]] += beyond[end is s]
    assert c.done and s.done
    assert s.leftover == beyond[0] and c.leftover == beyond[1]


def test_bytes_beyond_the_handshake_are_left_over() -> None:
    c, s = client(), server()
    to_client = s.receive(c.receive(s.receive(c.receive(s.receive(c.start())))) + b"frames")
    assert s.leftover == b"frames"
    c.receive(to_client + b"more frames")
    assert c.done and c.leftover == b"more frames"
    c.receive(b", and more")
    assert c.leftover == b"more frames, and more"


def test_another_spec_is_refused_at_both_ends_naming_the_leaf() -> None:
    ours, theirs = talk(client(OTHER, name="w7"), server())
    assert isinstance(ours, SpecError) and isinstance(theirs, SpecError)
    for error in (ours, theirs):
        assert "obs" in str(error) and "float32" in str(error) and "float64" in str(error)
    assert "'w7'" in str(theirs)
    mine, learners = str(ours).split(" here ")
    assert "float64" in mine and "float32" in learners and "at the learner" in learners
    mine, workers = str(theirs).split(" here ")
    assert "float32" in mine and "float64" in workers and "at the worker" in workers


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"leaves": 3, "structure": 0},
        {"leaves": [{"path": "obs", "shape": [-1], "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "obs", "shape": [1 << 61, 1 << 61], "dtype": "<f4"}], "structure": 0},
        {"leaves": [{"path": "obs", "shape": [4], "dtype": "O"}], "structure": 0},
        {"leaves": [{"path": "obs", "shape": [4], "dtype": [[1]]}], "structure": 0},
        {"leaves": [{}] * 5000, "structure": 0},
        {"leaves": [], "structure": json.loads("[" * 200 + "]" * 200)},
    ],
)
def test_a_spec_that_is_none_is_refused_at_either_end(spec: dict[str, Any]) -> None:
    c, s = client(), server()
    s.receive(c.receive(s.receive(c.start())))
    with pytest.raises((SpecError, ProtocolError)):
        s.receive(message(5, {"spec": spec}))
    c = client(token=None)
    c.receive(server(tokens=()).receive(c.start()))
    to_server = c.receive(message(4, {"mac": "", "silence": 1.0, "labels": False, "spec": spec}))
    assert body_of(to_server) == {"spec": SPEC.to_json()}  # so that the learner can say why too
    with pytest.raises(SpecError, match="learner"):
        c.receive(message(6, {}))


def test_a_spec_too_large_to_describe_is_refused_where_it_is_used() -> None:
    big = Spec.from_example({f"{i:04}" * 99: np.zeros(1, np.int8) for i in range(3000)})
    with pytest.raises(SpecError, match="fewer leaves"):
        server(big)
    with pytest.raises(SpecError, match="fewer leaves"):
        client(big)


def test_a_large_spec_travels() -> None:
    big = Spec.from_example({f"key {i:0100}": np.zeros((i, 2), np.int8) for i in range(1, 3000)})
    assert talk(client(big), server(big)) == (None, None)
