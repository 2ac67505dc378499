"""The frames: what is written can be read, and what breaks a limit is refused before it costs anything."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core.base.errors import EchoError, ProtocolError, SpecError
from echo_core.wire import protocol
from echo_core.wire.protocol import FIRST, LABELS, LAST, REPLY, TO_LEARNER, TO_WORKER, Kind, pack_header, parse_header
from echo_core.wire.weights import ALIGNMENT, pack, unpack

SAMPLE_BYTES = 20


def header(kind: int, allowed: frozenset[Kind] = TO_LEARNER | TO_WORKER, **fields: int) -> protocol.Header:
    return parse_header(pack_header(kind, **fields), SAMPLE_BYTES, allowed)


def test_the_header_is_24_little_endian_bytes() -> None:
    data = pack_header(Kind.DATA, count=3, seq=7, length=60)
    assert data == bytes([1, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0])
    assert header(Kind.DATA, count=3, seq=7, length=60) == (Kind.DATA, 0, 3, 7, 60)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.ACK, {"seq": 9}),
        (Kind.ACK, {"seq": 9, "count": 4}),
        (Kind.CONTROL, {"seq": 1, "length": 4, "flags": REPLY}),
        (Kind.WEIGHTS, {"seq": 1, "length": 256 << 10, "flags": FIRST | LAST}),
        (Kind.RECEIPT, {"seq": 1, "length": 8}),
        (Kind.SUBSCRIBE, {}),
        (Kind.PING, {"seq": 1, "flags": REPLY}),
        (Kind.BYE, {"length": 1024}),
        (Kind.DATA, {"seq": 1, "count": 65536, "length": 65536 * SAMPLE_BYTES}),
    ],
)
def test_what_the_table_permits_is_read(kind: Kind, fields: dict[str, int]) -> None:
    read = header(kind, **fields)
    assert read.kind is kind
    assert {name: getattr(read, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (0, {}, "unknown kind 0"),
        (99, {}, "unknown kind 99"),
        (Kind.ACK, {"length": 1}, "ACK frame of 1 bytes"),
        (Kind.PING, {"count": 1}, "count 1"),
        (Kind.ACK, {"flags": 1}, "unknown flags"),
        (Kind.CONTROL, {"length": 3}, "CONTROL frame of 3 bytes"),
        (Kind.CONTROL, {"length": (1 << 20) + 1}, "CONTROL frame"),
        (Kind.CONTROL, {"length": 4, "flags": 2}, "unknown flags"),
        (Kind.WEIGHTS, {"length": (256 << 10) + 1}, "WEIGHTS frame"),
        (Kind.WEIGHTS, {"length": 0}, "WEIGHTS frame"),
        (Kind.RECEIPT, {"length": 7}, "RECEIPT frame"),
        (Kind.BYE, {"length": 1025}, "BYE frame"),
        (Kind.PING, {"seq": 1 << 63}, "beyond"),
        (Kind.DATA, {"seq": 1, "count": 1, "length": 20, "flags": 4}, "unknown flags"),
        (Kind.DATA, {"seq": 1, "count": 1, "length": 20, "flags": 2}, "20 bytes for 1 samples of 20 bytes and labels of 16 bytes each"),
        (Kind.DATA, {"seq": 1, "count": 0}, "DATA frame of 0 samples"),
        (Kind.DATA, {"seq": 0, "count": 1, "length": 20}, "from number 0"),
        (Kind.DATA, {"seq": 1, "count": 65537, "length": 65537 * 20}, "65537 samples"),
        (Kind.DATA, {"seq": (1 << 63) - 1, "count": 1, "length": 20}, "DATA frame"),
        (Kind.DATA, {"seq": 1, "count": 2, "length": 39}, "39 bytes for 2 samples of 20 bytes"),
    ],
)
def test_what_it_does_not_is_refused(kind: int, fields: dict[str, int], text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        header(kind, **fields)


def test_the_table_number_is_reserved() -> None:
    data = protocol.HEADER.pack(Kind.PING, 0, 1, 0, 0, 0)
    with pytest.raises(ProtocolError, match="table 1"):
        parse_header(data, SAMPLE_BYTES, TO_WORKER)


@pytest.mark.parametrize("kind", [Kind.ACK, Kind.WEIGHTS])
def test_a_worker_cannot_send_what_is_the_learners(kind: Kind) -> None:
    with pytest.raises(ProtocolError, match=f"a {kind.name} frame, which may travel only in the other direction"):
        header(kind, TO_LEARNER, length=int(kind is Kind.WEIGHTS))


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.RECEIPT, Kind.SUBSCRIBE])
def test_a_learner_cannot_send_what_is_the_workers(kind: Kind) -> None:
    with pytest.raises(ProtocolError, match=f"a {kind.name} frame, which may travel only in the other direction"):
        header(kind, TO_WORKER)


def test_a_data_frame_holds_16_mib_or_one_sample_that_is_larger() -> None:
    big, small = 20 << 20, 1 << 20
    one = pack_header(Kind.DATA, count=1, seq=1, length=big)
    assert parse_header(one, big, TO_LEARNER).length == big
    two = pack_header(Kind.DATA, count=2, seq=1, length=2 * big)
    with pytest.raises(ProtocolError, match="more than"):
        parse_header(two, big, TO_LEARNER)
    seventeen = pack_header(Kind.DATA, count=17, seq=1, length=17 * small)
    with pytest.raises(ProtocolError, match="more than"):
        parse_header(seventeen, small, TO_LEARNER)
    sixteen = pack_header(Kind.DATA, flags=LABELS, count=16, seq=1, length=16 * (small + 16))  # labels come on top
    assert parse_header(sixteen, small, TO_LEARNER).flags == LABELS


@pytest.mark.parametrize("size", [0, 1, 20, 255, 257, 16 << 20, (16 << 20) + 1, 1 << 40])
def test_max_count_is_the_most_a_frame_may_carry(size: int) -> None:
    most = protocol.max_count(size)
    parse_header(pack_header(Kind.DATA, count=most, seq=1, length=most * size), size, TO_LEARNER)
    more = pack_header(Kind.DATA, count=most + 1, seq=1, length=(most + 1) * size)
    with pytest.raises(ProtocolError):
        parse_header(more, size, TO_LEARNER)


@given(st.binary(min_size=24, max_size=24))
def test_any_24_bytes_are_a_header_or_a_protocol_error(data: bytes) -> None:
    for allowed in (TO_LEARNER, TO_WORKER):
        try:
            read = parse_header(data, SAMPLE_BYTES, allowed)
        except ProtocolError:
            continue
        assert read.kind in allowed
        assert read.length <= protocol.MAX_DATA_BYTES


# ----------------------------------------------------------------------------- JSON and CONTROL


def test_requests_and_answers_come_out_as_they_went_in() -> None:
    request = protocol.pack_request("ping", {"a": [1, "ü"]}, b"blob")
    assert protocol.parse_request(request) == ("ping", {"a": [1, "ü"]}, b"blob")
    assert protocol.parse_reply(protocol.pack_reply({"b": None}, b"\0")) == ({"b": None}, b"\0")
    numbers = memoryview(b"eight by" * 3).cast("d")  # as plugins' operations may answer
    assert protocol.parse_reply(protocol.pack_reply({}, [numbers, b"", b"x"])) == ({}, b"eight by" * 3 + b"x")


def test_an_error_is_raised_at_the_other_end_as_text() -> None:
    with pytest.raises(SpecError, match=r"^leaf 'obs' is wrong$"):
        protocol.parse_reply(protocol.pack_error(SpecError("leaf 'obs' is wrong")))
    with pytest.raises(EchoError, match=r"^KeyError: 'x'$"):
        protocol.parse_reply(protocol.pack_error(KeyError("x")))
    with pytest.raises(EchoError, match="y" * 1000):
        protocol.parse_reply(protocol.pack_error(EchoError("y" * 10_000_000)))


def test_an_answer_cannot_name_a_class_that_is_no_echo_error() -> None:
    for name in ("SystemExit", "did_you_mean", "json", "EchoError", None, 3):
        payload = protocol.pack_reply({}).replace(b'{"body":{}}', b"")
        text = json.dumps({"error": "no", "type": name}).encode()
        payload = protocol.U32.pack(len(text)) + text
        with pytest.raises(EchoError, match=r"^no$") as caught:
            protocol.parse_reply(payload)
        assert type(caught.value) is EchoError


def test_a_message_larger_than_a_frame_is_refused_where_it_is_made() -> None:
    protocol.pack_request("op", {}, bytes(protocol.MAX_CONTROL_BYTES - 100))
    with pytest.raises(ValueError, match="at most 1048576"):
        protocol.pack_request("op", {}, bytes(protocol.MAX_CONTROL_BYTES))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"3", b"{", b'{"op":1}', b'{"op":"x","body":[]}', b"\xff\xfe{}", b"[" * 100_000, b'{"a":' * 50_000],
)
def test_a_request_that_is_none_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.parse_request(protocol.U32.pack(len(text)) + text)


def test_json_longer_than_its_frame_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="longer than its payload"):
        protocol.parse_request(protocol.U32.pack(3) + b"{}")


@given(st.binary(min_size=4, max_size=200))
def test_any_payload_is_an_answer_or_an_echo_error(payload: bytes) -> None:
    try:
        body, blob = protocol.parse_reply(payload)
    except EchoError:
        return
    assert isinstance(body, dict) and isinstance(blob, bytes)


# -------------------------------------------------------------------------------------- WEIGHTS


def chunks_of(tree: object, version: int = 5) -> list[tuple[protocol.Header, bytes]]:
    chunks = []
    for pieces in protocol.weights_frames(pack(tree, version)):
        read = parse_header(pieces[0], SAMPLE_BYTES, TO_WORKER)
        chunk = b"".join(pieces[1:])
        assert len(chunk) == read.length <= protocol.MAX_CHUNK_BYTES
        chunks.append((read, chunk))
    return chunks


@pytest.mark.parametrize("size", [0, 1, 1000, 32768 - 30, 32768, 200_000])
def test_weights_are_put_together_as_they_were(size: int) -> None:
    tree = {"w": np.arange(size, dtype=np.float64), "n": 3}
    chunks = chunks_of(tree)
    assert [bool(h.flags & FIRST) for h, _ in chunks] == [True] + [False] * (len(chunks) - 1)
    assert [bool(h.flags & LAST) for h, _ in chunks] == [False] * (len(chunks) - 1) + [True]
    assembler = protocol.WeightsAssembler()
    *rest, last = [assembler.add(h, chunk) for h, chunk in chunks]
    assert rest == [None] * len(rest) and last is not None
    version, meta, payload = last
    assert version == 5
    assert payload.ctypes.data % ALIGNMENT == 0 and not payload.flags.writeable
    params = unpack(meta, payload).params
    assert np.array_equal(params["w"], tree["w"]) and params["n"] == 3


def test_weights_with_a_description_larger_than_a_chunk() -> None:
    tree = {f"layer {i:0300d}": np.float32(i) for i in range(1500)}
    chunks = chunks_of(tree)
    assert len(chunks) > 2
    assembler = protocol.WeightsAssembler()
    *_, (_, meta, payload) = [assembler.add(h, chunk) for h, chunk in chunks]
    assert unpack(meta, payload).params == tree


@given(st.lists(st.integers(1, 7), min_size=1), st.integers(0, 30))
def test_chunks_of_any_size_will_do(sizes: list[int], payload_bytes: int) -> None:
    packed = pack({"w": np.arange(payload_bytes, dtype=np.uint8)}, 1)
    stream = protocol.U32.pack(len(packed.meta)) + packed.meta + packed.payload.tobytes()
    pieces, sizes = [], sizes * len(stream)
    while stream:
        n = sizes.pop()
        pieces.append(stream[:n])
        stream = stream[n:]
    assembler = protocol.WeightsAssembler()
    for i, piece in enumerate(pieces):
        flags = (FIRST if i == 0 else 0) | (LAST if i == len(pieces) - 1 else 0)
        whole = assembler.add(protocol.Header(Kind.WEIGHTS, flags, 0, 1, len(piece)), piece)
    assert whole is not None and whole[1] == packed.meta
    assert np.array_equal(whole[2], packed.payload)


def test_a_torn_version_is_never_put_together() -> None:
    one, two = chunks_of({"w": np.zeros(100_000)}, 1), chunks_of({"w": np.ones(100_000)}, 2)
    with pytest.raises(ProtocolError, match="without the first one"):
        protocol.WeightsAssembler().add(*one[1])
    assembler = protocol.WeightsAssembler()
    assembler.add(*one[0])
    with pytest.raises(ProtocolError, match="without the first one"):
        assembler.add(*two[1])
    assembler = protocol.WeightsAssembler()
    assembler.add(*one[0])
    with pytest.raises(ProtocolError, match="interrupted"):
        assembler.add(*two[0])


@pytest.mark.parametrize("data", [b"\1", b"\0\0\0", b"\5\0\0\0{}", b"\xff\xff\xff\xff" + bytes(100)])
def test_weights_without_a_whole_description_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="with an incomplete description"):
        protocol.WeightsAssembler().add(protocol.Header(Kind.WEIGHTS, FIRST | LAST, 0, 1, len(data)), data)
