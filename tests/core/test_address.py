"""Addresses: text in, the same text out, and errors that show what was meant."""

from __future__ import annotations

import dataclasses
import ipaddress
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core.base.address import Address, is_loopback_host
from echo_core.base.errors import AddressError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.from_regex(r"[a-z0-9_]([a-z0-9_.-]{0,20}[a-z0-9_])?", fullmatch=True)
HOSTS = st.one_of(NAMES, st.ip_addresses().map(str), st.just("fe80::1%Eth0"))


def is_place(path: str) -> bool:
    """Paths that an address without a host may have: not empty, and no host without a port."""
    try:
        ipaddress.ip_address(path)
    except ValueError:
        return path != "" and path.lower() != "localhost"
    return False


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    scheme = draw(st.from_regex(r"[a-z][a-z0-9+._-]{0,8}", fullmatch=True))
    options = draw(st.dictionaries(TEXT.filter(bool), TEXT, max_size=3))
    if draw(st.booleans()):
        path = draw(st.one_of(st.just(""), TEXT.map(lambda text: "/" + text)))
        return Address(scheme, draw(HOSTS), draw(st.integers(0, 65535)), path, options)
    return Address(scheme, path=draw(TEXT.filter(is_place)), options=options)


@given(addresses())
def test_text_round_trip(address: Address) -> None:
    again = Address.parse(str(address))
    assert again == address
    assert list(again.options.items()) == list(address.options.items())
    assert hash(again) == hash(address)
    assert pickle.loads(pickle.dumps(address)) == address


@given(TEXT)
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    for candidate in (text, f"tcp://{text}", f"tcp://{text}:1"):
        try:
            address = Address.parse(candidate)
        except AddressError:
            continue
        assert Address.parse(str(address)) == address


def test_parts() -> None:
    address = Address.parse("TCP://[::1]:5555/table?window=64&name=a%20b&empty=")
    assert address == Address(
        "tcp", "::1", 5555, "/table", {"window": "64", "name": "a b", "empty": ""}
    )
    assert address.endpoint == ("::1", 5555)
    assert str(address) == "tcp://[::1]:5555/table?window=64&name=a%20b&empty="


def test_places_without_a_host() -> None:
    assert Address.parse("shm://name") == Address("shm", path="name")
    assert Address.parse("unix:///run/echo.sock").path == "/run/echo.sock"
    assert str(Address("unix", path="/run/a:b")) == "unix:///run/a%3Ab"


def test_an_address_is_its_own_parse_and_cannot_change() -> None:
    address = Address.parse(" tcp://Learner:1 \n")
    assert Address.parse(address) is address
    assert address.host == "learner"
    with pytest.raises(dataclasses.FrozenInstanceError):
        address.port = 2  # type: ignore[misc]
    assert str(dataclasses.replace(address, port=7)) == "tcp://learner:7"


def test_options_are_copied() -> None:
    options = {"a": "1"}
    address = Address("tcp", "h", 1, options=options)
    options["a"] = "2"
    assert address.options == {"a": "1"}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("localhost:5555", "tcp://localhost:5555"),
        ("learner", "tcp://learner:5555"),
        ("//learner:1", "tcp://learner:1"),
        ("tcp:learner:1", "tcp://learner:1"),
        ("grpc:/learner:1", "grpc://learner:1"),
        ("::1", "tcp://[::1]:5555"),
        ("[::1]:9", "tcp://[::1]:9"),
        ("tcp://::1:5555", "tcp://[::1]:5555"),
        ("tcp://::1", "tcp://[::1]:5555"),
        ("tcp://[::1]", "tcp://[::1]:5555"),
        ("tcp://127.0.0.1", "tcp://127.0.0.1:5555"),
        ("tcp://localhost", "tcp://localhost:5555"),
        ("tcp://:5555", "tcp://127.0.0.1:5555"),
        ("tcp://*:5555", "tcp://0.0.0.0:5555"),
    ],
)
def test_near_misses_show_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(AddressError) as error:
        Address.parse(text)
    assert f'"{meant}"' in str(error.value)
    assert Address.parse(meant).endpoint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the address is empty"),
        ("/tmp/echo.sock", "has no scheme"),
        ("tcp//h:1", "has no scheme"),
        ("1tcp://h:1", "has no scheme"),
        ("tcp://", "has nothing after the scheme"),
        ("tcp://h:", "not nothing"),
        ("tcp://h:x", "not 'x'"),
        ("tcp://h:-1", "not '-1'"),
        ("tcp://h:65536", "out of range"),
        ("tcp://h:\u0661", "a port must be a number"),
        ("tcp://[::1:1", "never closes"),
        ("tcp://[::1]5", '"]" must be followed by ":"'),
        ("tcp://[host]:5", "brackets must hold an IPv6 address"),
        ("tcp://h h:1", "not a host name"),
        ("tcp://user:word@h:1", "must not hold a user or password"),
        ("tcp://h:1?x", "name=value"),
        ("tcp://h:1?=x", "name=value"),
        ("tcp://h:1?a=1&a=2", "'a' twice"),
        ("tcp://h:1/%ff", "not UTF-8"),
    ],
)
def test_errors_say_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(AddressError) as error:
        Address.parse(text)
    assert said in str(error.value)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    "text",
    ["tcp://h:1x?token=s3cret", "h:1?token=s3cret", "tcp://h:1?token=s3cret=&", "tcp://h:1?a=1&a=2&token=s3cret", "tcp://me:s3cret@h:1", "me:s3cret@h:1"],
)
def test_errors_show_no_secret(text: str) -> None:
    """People put tokens and passwords there, and an error ends in a log."""
    with pytest.raises(AddressError) as error:
        Address.parse(text)
    assert "s3cret" not in str(error.value)
    assert error.value.__cause__ is None and error.value.__suppress_context__


def test_text_only() -> None:
    with pytest.raises(AddressError, match="an address must be text, not int"):
        Address.parse(5555)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        lambda: Address("tcp", "h"),
        lambda: Address("tcp"),
        lambda: Address("tcp", port=5),
        lambda: Address("tcp", "h", True),
        lambda: Address("tcp", "h", 1, "no-slash"),
        lambda: Address("t/p", "h", 1),
        lambda: Address("shm", path="\ud800"),
        lambda: Address("tcp", "fe80::1%a]b", 1),
        lambda: Address("tcp", "h", 1, options={"": "x"}),
    ],
)
def test_built_by_hand_the_same_rules_hold(build) -> None:
    with pytest.raises(AddressError):
        build()


def test_endpoint_asks_for_the_missing_port() -> None:
    with pytest.raises(AddressError, match='did you mean "tcp://learner:5555"'):
        _ = Address.parse("tcp://learner").endpoint


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.255.0.3", "::1", "localhost", "LOCALHOST.", "::ffff:127.0.0.1"]
)
def test_loopback_hosts(host: str) -> None:
    assert is_loopback_host(host)
    assert Address("tcp", host, 1).is_loopback


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "128.0.0.1", "learner", "fe80::1%lo", "::ffff:10.0.0.1", "127.0.0"]
)
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback_host(host)
    assert not Address("tcp", host, 1).is_loopback


def test_no_host_stays_on_this_machine_but_an_empty_bind_does_not() -> None:
    assert Address.parse("shm://name").is_loopback
    assert not is_loopback_host("")
