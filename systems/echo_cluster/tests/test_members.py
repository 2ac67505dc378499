"""Members come from lists, folders, DNS and SLURM, and from no place that others can write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from echo_cluster.members import announce, find_members, slurm_folder
from echo_cluster.near import address_from_here, host_id
from echo_core import Address, ConfigError, SecurityError


def test_a_list_is_its_members() -> None:
    members = find_members(["tcp://a:5000", ["tcp://b:5000", "shm://b"]])()
    assert [member.name for member in members] == ["tcp://a:5000", "tcp://b:5000"]
    assert str(address_from_here(members[1].addresses, "")) == "tcp://b:5000"
    here = find_members([["tcp://127.0.0.1:5000", "shm://here"]])()[0]
    assert str(address_from_here(here.addresses, "")) == "shm://here"


@pytest.mark.parametrize("wrong", [[], [[]], ["tcp://a:1", "tcp://a:1"], 5, [None], [5], [["tcp://a:1", None]], b"tcp://a:1", [b"tcp://a:1"]])
def test_what_names_no_members_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="members"):
        find_members(wrong)


def test_a_folder_has_the_members_that_announced_themselves(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    find = find_members(f"file://{folder}")
    assert find() == [], "nobody is up yet"
    announce(folder, 1, ["tcp://10.0.0.1:5000", "shm://one"])
    announce(folder, 0, ["tcp://10.0.0.2:5000"])
    zero, one = find()
    assert (zero.name, one.name, one.host) == ("shard-0", "shard-1", host_id())
    assert str(address_from_here(one.addresses, one.host)) == "shm://one"
    assert str(address_from_here(one.addresses, "another")) == "tcp://10.0.0.1:5000"
    assert sorted(os.listdir(folder)) == ["shard-0", "shard-1"]
    announce(folder, 0, ["tcp://10.0.0.2:6000"])
    assert find()[0].addresses == (Address.parse("tcp://10.0.0.2:6000"),)


def test_a_folder_or_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    announce(folder, 0, ["tcp://a:5000"])
    (folder / "shard-0").chmod(0o622)
    with pytest.raises(SecurityError, match="chmod go-w"):
        find_members(f"file://{folder}")()
    (folder / "shard-0").chmod(0o600)
    folder.chmod(0o777)
    with pytest.raises(SecurityError, match="chmod go-w"):
        find_members(f"file://{folder}")()
    with pytest.raises(SecurityError, match="chmod go-w"):
        announce(folder, 1, ["tcp://a:5000"])


def test_a_bad_file_does_not_hide_the_good_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "shards"
    find = find_members(f"file://{folder}")
    for number in range(3):
        announce(folder, number, [f"tcp://a:500{number}"])
    (folder / "shard-0").chmod(0o622)
    (folder / "shard-3").symlink_to(folder / "shard-1")
    (folder / "shard-4").mkdir()
    (folder / "shard-5").touch(0o600)
    (folder / "shard-01").write_text("tcp://a:5001\n")
    for _ in range(2):
        assert [member.name for member in find()] == ["shard-1", "shard-2"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 5, "once for each file"
    for name in ("shard-0", "shard-01", "shard-3", "shard-4", "shard-5"):
        assert sum(f"{folder / name} " in text or text.endswith(str(folder / name)) for text in said) == 1, name
    (folder / "shard-0").chmod(0o600)
    assert [member.name for member in find()] == ["shard-0", "shard-1", "shard-2"]
    for number in range(3):
        (folder / f"shard-{number}").unlink()
    with pytest.raises(ConfigError, match="zeros before it"):
        find()


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="members: .* is a file"):
        find_members(f"file://{tmp_path / 'file'}")()
    with pytest.raises(ConfigError, match="folder: .* is a file"):
        announce(tmp_path / "file", 0, ["tcp://a:5000"])


@pytest.mark.parametrize(
    ("number", "addresses", "message"),
    [(-1, ["tcp://a:1"], "number"), (65_536, ["tcp://a:1"], "number"), ("1", ["tcp://a:1"], "number"), (1.5, ["tcp://a:1"], "number"),
     (True, ["tcp://a:1"], "number"), (0, [], "addresses"), (0, None, "addresses"), (0, [None], "addresses"), (0, b"tcp://a:1", "addresses")],
)  # fmt: skip
def test_what_cannot_be_announced_is_refused_and_writes_nothing(tmp_path: Path, number: Any, addresses: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        announce(tmp_path / "shards", number, addresses)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize("content", [b"", b"a secret", b"tcp://a:1\n" * 1000, b"\xff"])
def test_a_file_without_addresses_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "shard-0").write_bytes(content)
    with pytest.raises(ConfigError, match="shard-0 does not contain the addresses") as caught:
        find_members(f"file://{tmp_path}")()
    assert "secret" not in str(caught.value)


def test_dns_means_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [member.name for member in find_members("dns://localhost:5000?transport=tcp")()]
    assert "127.0.0.1:5000" in names
    assert find_members("dns://nobody.invalid:5000?transport=tcp")() == []
    with pytest.raises(ConfigError, match="needs a port and a transport"):
        find_members("dns://localhost:5000")
    with pytest.raises(ConfigError, match="certificate"):
        find_members("dns://localhost:5000?transport=tcps")


@pytest.mark.parametrize("members", [
    "dns://localhost:5000?transport=tcp", "file:///tmp/echo", ["dns://localhost:5000?transport=tcp"], ["tcp://a:1", ["tcp://b:1", "file:///tmp/echo"]],
])  # fmt: skip
def test_without_a_token_addresses_of_strangers_are_refused(members: Any) -> None:
    with pytest.raises(SecurityError, match="leave out auth=False"):
        find_members(members, auth=False)


def test_the_folder_of_a_slurm_job() -> None:
    assert slurm_folder({"ECHO_CLUSTER_DIR": "/shared", "SLURM_JOB_ID": "17"}) == Path("/shared/17")
    with pytest.raises(ConfigError, match="; SLURM_JOB_ID is not set"):
        slurm_folder({"ECHO_CLUSTER_DIR": "/shared"})
    with pytest.raises(ConfigError, match="ECHO_CLUSTER_DIR and SLURM_JOB_ID are not set"):
        slurm_folder({})


def test_the_members_of_a_slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_CLUSTER_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    announce(tmp_path / "17", 3, ["tcp://127.0.0.1:5000"])
    assert [member.name for member in find_members("slurm://")()] == ["shard-3"]
