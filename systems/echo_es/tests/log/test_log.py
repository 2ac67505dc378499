"""The epoch log as a file: what is written is read again, half a record is cut off, and damage and strangers are refused."""

from __future__ import annotations

import json
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import CheckpointError, ConfigError
from echo_es.log import EpochLog, read_log
from echo_es.log.contents import MAGIC

SEARCH = {"experiment": "default", "population": 3, "strategy": {"strategy": "PGPE", "dims": 2}}


def rewards(epoch: int) -> np.ndarray[Any, Any]:
    return np.array([epoch, np.nan, -1 / epoch])


def written(path: Path) -> list[int]:
    """Write two epochs, a test, statistics and a part. Returns how long the file was after each."""
    lengths = []
    log = EpochLog(path, SEARCH)
    steps: list[Callable[[], None]] = [
        lambda: None,
        lambda: log.epoch(1, rewards(1)),
        lambda: log.test(1, np.array([5.0, 6.0])),
        lambda: log.epoch(2, rewards(2), b"statistics"),
        lambda: (log.part(3, (slice(0, 1), slice(2, 3)), np.array([7.0, 8.0])), log.flush())[1],
    ]
    for step in steps:
        step()
        lengths.append(path.stat().st_size)
    log.close()
    return lengths


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written(tmp_path / "log")
    found = read_log(tmp_path / "log")
    assert found.search | {"run": None} == SEARCH | {"run": None} and len(found.search["run"]) == 16
    assert [epoch for epoch, _ in found.epochs] == [1, 2] and len(found.times) == 2
    for epoch, values in found.epochs:
        np.testing.assert_array_equal(values, rewards(epoch))
    assert [(epoch, values.tolist()) for epoch, values in found.tests] == [(1, [5.0, 6.0])]
    assert found.seen == (2, b"statistics")
    assert [(slices, values.tolist()) for slices, values in found.partial()] == [((slice(0, 1), slice(2, 3)), [7.0, 8.0])]
    assert found.whole == found.size == (tmp_path / "log").stat().st_size


def test_half_a_record_is_cut_off_at_every_byte(tmp_path: Path) -> None:
    lengths = written(tmp_path / "log")
    content = (tmp_path / "log").read_bytes()
    whole = read_log(tmp_path / "log")
    for length in range(len(content)):
        path = tmp_path / "torn"
        path.write_bytes(content[:length])
        complete = sum(length >= end for end in lengths)
        log = EpochLog(path, SEARCH)
        found = log.found
        assert [epoch for epoch, _ in found.epochs] == [1, 2][: (complete >= 2) + (complete >= 4 or length >= _end_of_epoch(content, 2))], length
        assert len(found.tests) == (complete >= 3) and len(found.parts) == (complete >= 5)
        assert (log.run == whole.search["run"]) == (complete >= 1)  # else nothing was logged, and it begins anew
        log.epoch(len(found.epochs) + 1, rewards(9))
        log.close()
        again = read_log(path)
        assert again.whole == again.size and len(again.epochs) == len(found.epochs) + 1


def _end_of_epoch(content: bytes, number: int) -> int:
    """Where the record of this epoch ends: it and its statistics are written at once, but only the record itself has to be whole."""
    at = content.index(f'"epoch": {number}'.encode())
    begin = content.rindex(b"\xe5ES\n", 0, at)
    text, data = struct.unpack_from("<IQ", content, begin + 8)
    return begin + 20 + int(text) + int(data)


def test_damage_before_whole_records_is_an_error(tmp_path: Path) -> None:
    lengths = written(tmp_path / "log")
    content = bytearray((tmp_path / "log").read_bytes())
    for place in range(lengths[0], lengths[-2]):
        damaged = content.copy()
        damaged[place] ^= 0x40
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is damaged at byte"):
            EpochLog(tmp_path / "damaged", SEARCH)
        assert (tmp_path / "damaged").read_bytes() == damaged


def test_damage_of_the_description_is_an_error(tmp_path: Path) -> None:
    lengths = written(tmp_path / "log")
    content = bytearray((tmp_path / "log").read_bytes())
    content[lengths[0] - 3] ^= 1
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"is damaged at byte {len(MAGIC)}"):
        read_log(tmp_path / "log")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"experiment": "other"}, "its experiment is 'default', and this server's is 'other'"),
        ({"population": 4}, "its population is 3, and this server's is 4"),
        ({"strategy": {"strategy": "PGPE", "dims": 5}}, "its strategy is .*'dims': 2.* and this server's is .*'dims': 5"),
        ({"noise": "abc"}, "its noise is None, and this server's is 'abc'"),
    ],
)
def test_the_log_of_another_search_is_refused_and_stays(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    written(tmp_path / "log")
    before = (tmp_path / "log").read_bytes()
    with pytest.raises(ConfigError, match=text):
        EpochLog(tmp_path / "log", {**SEARCH, **change})
    assert (tmp_path / "log").read_bytes() == before
    EpochLog(tmp_path / "log", SEARCH).close()  # the refusal has freed the lock


def test_files_that_are_no_logs_are_refused_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("these are my notes")
    with pytest.raises(ConfigError, match="is no epoch log"):
        EpochLog(path, SEARCH)
    assert path.read_text() == "these are my notes"
    path.write_bytes(MAGIC[:-4] + struct.pack("<I", 7) + b"what this means is not known yet")
    with pytest.raises(ConfigError, match="has the format 7, and this echo-es reads 1"):
        EpochLog(path, SEARCH)


def test_only_one_process_writes_a_log(tmp_path: Path) -> None:
    log = EpochLog(tmp_path / "log", SEARCH)
    with pytest.raises(ConfigError, match="another server writes"):
        EpochLog(tmp_path / "log", SEARCH)
    program = "import json, sys\nfrom echo_es.log import EpochLog\nEpochLog(sys.argv[1], json.loads(sys.argv[2]))"
    other = subprocess.run([sys.executable, "-c", program, str(tmp_path / "log"), json.dumps(SEARCH)], capture_output=True, text=True, timeout=60)
    assert other.returncode == 1 and "another server writes" in other.stderr
    log.epoch(1, rewards(1))
    assert len(read_log(tmp_path / "log").epochs) == 1  # reading needs no lock
    log.close()
    log.close()
    EpochLog(tmp_path / "log", SEARCH).close()


def test_nothing_follows_a_write_that_failed(tmp_path: Path) -> None:
    log = EpochLog(tmp_path / "log", SEARCH)
    log.epoch(1, rewards(1))
    size = (tmp_path / "log").stat().st_size
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))  # as if the disk were full after ten bytes
        with pytest.raises(OSError, match="File too large"):
            log.epoch(2, rewards(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (tmp_path / "log").stat().st_size == size + 10
    with pytest.raises(OSError, match="could not be written before"):
        log.epoch(2, rewards(2))
    log.close()
    again = EpochLog(tmp_path / "log", SEARCH)
    assert [epoch for epoch, _ in again.found.epochs] == [1] and (tmp_path / "log").stat().st_size == size
    again.close()


def test_parts_are_written_after_a_while_and_not_beside_their_epoch(tmp_path: Path) -> None:
    log = EpochLog(tmp_path / "log", SEARCH)
    log.part(1, (slice(0, 2),), np.array([1.0, 2.0]))
    log.flush(3600)
    assert not read_log(tmp_path / "log").parts
    log.flush()
    assert len(read_log(tmp_path / "log").partial()) == 1
    log.part(1, (slice(2, 3),), np.array([3.0]))
    log.epoch(1, np.array([1.0, 2.0, 3.0]))
    log.flush()
    found = read_log(tmp_path / "log")
    assert not found.parts and not found.partial() and len(found.epochs) == 1
    log.close()


def test_the_state_is_replaced_as_a_whole(tmp_path: Path) -> None:
    log = EpochLog(tmp_path / "log", SEARCH)
    assert log.saved_state() is None
    log.state(4, b"four")
    log.state(5, b"five", told=60)
    assert log.saved_state() == (5, 60, b"five")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.state"]
    content = (tmp_path / "log.state").read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        (tmp_path / "log.state").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is damaged|is no state"):
            log.saved_state()
        (tmp_path / "log.state").write_bytes(content[:place])
        with pytest.raises(CheckpointError, match="is damaged|is no state"):
            log.saved_state()
    (tmp_path / "log.state").write_bytes(content)
    log.close()
    (tmp_path / "log").unlink()
    other = EpochLog(tmp_path / "log", SEARCH)
    assert other.saved_state() is None  # it belongs to a log that is gone
    other.close()
