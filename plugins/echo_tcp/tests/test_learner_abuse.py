"""The learner's end and clients that break the rules: other clients are not disturbed."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from echo_core import Server
from echo_core.base.errors import HandshakeRefused, SecurityError, SpecError
from echo_core.security.tokens import find_token
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import PROTOCOL_VERSION, Kind, frame, pack_header
from echo_net.handshake import ClientHandshake
from echo_tcp.listener import control
from echo_tcp.listener.complaints import Seldom
from echo_tcp.transport import TcpTransport

EXAMPLE = {"x": np.zeros(4, np.float32), "y": np.zeros((), np.int64)}  # 24 bytes


def still_serves(server, worker):
    """`worker` was connected before the incident, and is not disturbed by it."""
    before = worker.next - 1
    worker.send(range(4))
    worker.acknowledged(before + 4)
    assert server.sample(10).batch["y"].tolist() == [0, 1, 2, 3]


def connect(server):
    return socket.create_connection(server.address.endpoint, timeout=20)


def ended(sock):
    """Wait until the learner has hung up. Returns the bytes that it sent before."""
    said = b""
    try:
        while data := sock.recv(65536):
            said += data
    except ConnectionResetError:
        pass
    return said


BROKEN_FRAMES = {
    "unknown kind": (pack_header(99), "unknown kind 99"),
    "kind 0": (bytes(24), "unknown kind 0"),
    "an ACK": (pack_header(Kind.ACK, seq=1), "only learners send"),
    "WEIGHTS": (pack_header(Kind.WEIGHTS, seq=1, length=5) + b"12345", "only learners send"),
    "another table": (struct.pack("<BBHIQQ", 1, 0, 3, 1, 1, 24), "table 3"),
    "flags": (pack_header(Kind.DATA, flags=4, count=1, seq=1, length=24), "flags 4"),
    "no samples": (pack_header(Kind.DATA, seq=1), "count 0"),
    "too many samples": (pack_header(Kind.DATA, count=65537, seq=1, length=65537 * 24), "65536"),
    "another size": (pack_header(Kind.DATA, count=2, seq=1, length=47), "a sample is 24 bytes"),
    "sample 0": (pack_header(Kind.DATA, count=1, seq=0, length=24), "numbered from 1"),
    "a gap": (pack_header(Kind.DATA, count=1, seq=3, length=24), "sample 3 after sample 0"),
    "the last number": (pack_header(Kind.DATA, count=1, seq=2**64 - 1, length=24), "2\\*\\*63"),
    "a huge control message": (pack_header(Kind.CONTROL, seq=1, length=(1 << 20) + 1), "1048576 bytes"),
    "an empty control message": (pack_header(Kind.CONTROL, seq=1), "4 to 1048576"),
    "a control message that is none": (frame(Kind.CONTROL, b"\xff\xff\xff\xff"), "longer than"),
    "a long goodbye": (pack_header(Kind.BYE, length=2000), "0 to 1024"),
    "a receipt for nothing": (frame(Kind.RECEIPT, bytes(8), seq=3), "not sent"),
    "a short receipt": (pack_header(Kind.RECEIPT, seq=3, length=7), "8 to 8"),
    "a subscription with a count": (pack_header(Kind.SUBSCRIBE, count=1), "count 0"),
    "a web browser": (b"GET / HTTP/1.1\r\nHost: learner\r\n\r\n", "unknown kind 71|table"),
}


@pytest.mark.parametrize("sent, reason", BROKEN_FRAMES.values(), ids=BROKEN_FRAMES)
def test_a_broken_frame_ends_its_connection_with_a_reason(sent, reason, dial, eventually, caplog, serve):
    with serve(EXAMPLE) as server:
        good, bad = dial(server), dial(server)
        bad.sock.sendall(sent)
        farewell = bad.farewell()
        assert re.search(reason, farewell), farewell
        eventually(lambda: len(server.peers()) == 1)
        assert server.stats()["transport/tcp/protocol_errors"] == 1
        eventually(lambda: "broke the protocol" in caplog.text)
        still_serves(server, good)


def test_a_breach_after_good_samples_takes_nothing_back(dial, serve):
    with serve(EXAMPLE) as server:
        worker = dial(server)
        worker.sock.sendall(worker.data(range(4)) + b"\xff" * 100)
        worker.acknowledged(4)
        assert "unknown kind 255" in worker.farewell()
        assert server.sample(10).batch["y"].tolist() == [0, 1, 2, 3]
        assert dial(server, worker.client).resumed_at == 4


@pytest.mark.parametrize("where", ["header", "payload", "large payload"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_hanging_up_in_the_middle(where, reset, dial, eventually, serve):
    example = {"x": np.zeros(50_000), "y": np.zeros((), np.int64)} if "large" in where else EXAMPLE
    with serve(example) as server:
        good = dial(server)
        for _ in range(3):
            bad = dial(server)
            bad.sock.sendall(bad.data([1, 2, 3])[: 11 if where == "header" else -5])
            time.sleep(0.002)
            bad.close(reset=reset)
        eventually(lambda: len(server.peers()) == 1)
        still_serves(server, good)
        assert server.stats()["store/samples_inserted_total"] == 4


BROKEN_HANDSHAKES = {
    "nothing": b"",
    "garbage": os.urandom(3000),
    "a web browser": b"GET / HTTP/1.1\r\nHost: learner\r\n\r\n",
    "half a header": b"ECHO" + bytes((PROTOCOL_VERSION, 1)),
    "half a message": struct.pack("<4sBBHI", b"ECHO", PROTOCOL_VERSION, 1, 0, 300) + b'{"client"',
    "too long": struct.pack("<4sBBHI", b"ECHO", PROTOCOL_VERSION, 1, 0, 5000) + b" " * 5000,
    "another version": struct.pack("<4sBBHI", b"ECHO", 7, 1, 0, 2) + b"{}",
    "another message": struct.pack("<4sBBHI", b"ECHO", PROTOCOL_VERSION, 5, 0, 2) + b"{}",
    "no JSON": struct.pack("<4sBBHI", b"ECHO", PROTOCOL_VERSION, 1, 0, 4) + b"\xff\xfe{}",
    "an empty object": struct.pack("<4sBBHI", b"ECHO", PROTOCOL_VERSION, 1, 0, 2) + b"{}",
}


@pytest.mark.parametrize("sent", BROKEN_HANDSHAKES.values(), ids=BROKEN_HANDSHAKES)
def test_a_broken_handshake(sent, dial, eventually, serve):
    with serve(EXAMPLE, handshake_timeout=1.0) as server:
        good = dial(server)
        with connect(server) as sock:
            sock.sendall(sent)
            still_serves(server, good)
            ended(sock)  # at the latest when its time is over
        eventually(lambda: server.stats()["transport/tcp/protocol_errors"] + server.stats()["transport/tcp/refused"] > 0)  # just after it got the answer
        stats = server.stats()
        assert stats["transport/tcp/protocol_errors"] + stats["transport/tcp/refused"] == 1
        assert stats["transport/tcp/connections_total"] == 1


def test_strangers_who_say_nothing_do_not_keep_others_out(dial, eventually, serve):
    with serve(EXAMPLE, max_pending=4, handshake_timeout=60) as server:
        strangers = [connect(server) for _ in range(5)]
        try:
            still_serves(server, dial(server))  # is admitted as others are ended
        finally:
            for sock in strangers:
                sock.close()


def test_nobody_is_thrown_out_for_the_last_free_place(monkeypatch, serve):
    monkeypatch.setattr(control, "CROWDED_SECONDS", 0.1)
    with serve(EXAMPLE, max_pending=2, handshake_timeout=60) as server, connect(server) as first:
        time.sleep(0.3)
        with connect(server) as second:
            second.sendall(b"x" * 64)
            ended(second)
        first.settimeout(0.3)
        with pytest.raises(TimeoutError):
            first.recv(1)


def test_the_wrong_token_and_the_wrong_spec_are_told_why(dial, eventually, serve):
    with serve(EXAMPLE) as server:
        good = dial(server)
        other = Spec.from_example({"x": np.zeros(4, np.float32), "y": np.zeros((), np.uint64)})
        for spec, token, error, text in [
            (server.spec, b"a-wrong-token-long-enough", SecurityError, "token"),
            (other, find_token(), SpecError, "y"),
        ]:
            with connect(server) as sock:
                handshake = ClientHandshake(spec, token)
                sock.sendall(handshake.start())
                with pytest.raises(error, match=text):
                    while data := sock.recv(65536):
                        sock.sendall(handshake.receive(data))
                ended(sock)
        eventually(lambda: server.stats()["transport/tcp/refused"] == 2)
        still_serves(server, good)


def test_more_clients_than_may_connect_are_refused(dial, eventually, serve):
    with serve(EXAMPLE, max_connections=2) as server:
        one, two = dial(server), dial(server)
        with pytest.raises(HandshakeRefused, match="max_connections") as refused:
            dial(server)
        assert refused.value.code == "busy"
        two.close()
        eventually(lambda: len(server.peers()) == 1)
        dial(server)
        still_serves(server, one)


def test_complaints_do_not_fill_the_log(dial, caplog, serve):
    began = time.monotonic()
    with serve(EXAMPLE) as server, caplog.at_level(logging.WARNING, "echo"):
        for _ in range(50):
            with connect(server) as sock:
                sock.sendall(b"garbage, and more than enough of it")
                ended(sock)
        assert server.stats()["transport/tcp/protocol_errors"] == 50
        assert 1 <= len(caplog.records) <= 1 + (time.monotonic() - began) / Seldom.INTERVAL


def test_out_of_file_descriptors(tmp_path):
    """Runs in a process of its own: new clients get the reason, old ones are served, and no thread spins."""
    program = textwrap.dedent(
        """
        import logging, os, resource, socket, sys, time
        import numpy as np
        from echo_core import Client, Server
        from echo_tcp.transport import TcpTransport

        class Counter(logging.Handler):
            seen = 0
            def emit(self, record):
                Counter.seen += "accepted" in record.getMessage()

        logging.getLogger("echo").addHandler(Counter())
        example = {"y": np.zeros((), np.int64)}
        server = Server(example, 1, TcpTransport(port=0)).start()
        client = Client(server.address, example)
        crowd = [socket.socket() for _ in range(20)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4,) * 2)
        spare = []
        try:
            while True:
                spare.append(os.dup(0))
        except OSError:
            pass
        began = time.monotonic()
        for sock in crowd:
            sock.setblocking(False)
            try:
                sock.connect(server.address.endpoint)
            except BlockingIOError:
                pass
        time.sleep(1.2)
        for window in range(10):  # a thread that spins uses all of each window
            used = time.process_time()
            time.sleep(0.5)
            used = time.process_time() - used
            if used < 0.25:
                break
        client.send({"y": np.array(7)})
        assert server.sample(10).batch["y"].tolist() == [7]
        assert 1 <= Counter.seen <= 2 + (time.monotonic() - began), Counter.seen
        for fd in spare:
            os.close(fd)
        for sock in crowd:
            sock.close()
        Client(server.address, example).close()
        client.close()
        server.close()
        print("spun" if used > 0.25 else "slept")
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "slept\n", done.stderr


def test_one_thrown_out_of_its_handshake_while_it_speaks_is_no_trouble(serve, eventually, caplog):
    """One call of select reports a new client while many are in their handshake, and bytes of the oldest of these."""
    looking_away, go_on = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record):
            looking_away.set()
            go_on.wait(20)

    slow = Slow()
    logging.getLogger("echo").addHandler(slow)
    try:
        with serve(EXAMPLE, max_pending=4) as server, contextlib.ExitStack() as stack:
            oldest, _ = [stack.enter_context(connect(server)) for _ in range(2)]
            time.sleep(2.1)  # after so long its handshake may be ended
            stack.enter_context(connect(server)).sendall(bytes(100))  # turned away, with a line in the log
            assert looking_away.wait(20)
            late = [stack.enter_context(connect(server)) for _ in range(2)]
            time.sleep(0.1)  # the listening socket comes first
            oldest.sendall(b"ECHO")
            go_on.set()
            ended(oldest)
            late[0].sendall(bytes(100))
            ended(late[0])  # by the control thread, which has survived
        assert not [record for record in caplog.records if record.exc_info], caplog.text
    finally:
        logging.getLogger("echo").removeHandler(slow)


def test_port_in_use_says_so_and_how_to_choose_another(serve):
    with serve(EXAMPLE) as server:
        with pytest.raises(OSError, match=f"127.0.0.1:{server.port}: the port is in use.*port=0") as error:
            Server(EXAMPLE, 4, TcpTransport(port=server.port)).start()
        assert error.value.errno == errno.EADDRINUSE


def test_hosts_that_cannot_be():
    with pytest.raises(OSError, match=r"192\.0\.2\.1:0: no interface"):
        Server(EXAMPLE, 4, TcpTransport(port=0, host="192.0.2.1")).start()
    with pytest.raises(OSError, match=r"no-such-host\.invalid"):
        Server(EXAMPLE, 4, TcpTransport(port=0, host="no-such-host.invalid")).start()


def test_exposed_without_authentication_is_refused_with_the_remedies():
    for options, token in [({"auth": False}, "token.*"), ({"protocol": "echo1"}, "")]:  # the original protocol has no tokens
        with pytest.raises(SecurityError, match=rf"(?s)loopback.*{token}allow_insecure"):
            Server(EXAMPLE, 4, TcpTransport(port=0, host="0.0.0.0", **options)).start()
        Server(EXAMPLE, 4, TcpTransport(port=0, host="0.0.0.0", allow_insecure=True, **options)).start().close()


@pytest.mark.parametrize(
    "host, reach",
    [("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.2")],
)
def test_hosts(host, reach, dial, serve):
    with serve(EXAMPLE, host=host) as server:
        with socket.create_connection((reach, server.port), timeout=20) as sock:
            sock.sendall(b"who is there?")
            ended(sock)
        assert server.stats()["transport/tcp/protocol_errors"] == 1


@pytest.mark.parametrize(
    "options, text",
    [
        ({"prot": "echo1"}, "prot"),
        ({"protocol": "echo3"}, "echo3"),
        ({"num_threads": 0}, "num_threads"),
        ({"port": 70000}, "port"),
        ({"host": ""}, "0.0.0.0"),
        ({"protocol": "echo1", "token": "x"}, "no authentication"),
        ({"staging_bytes": -1}, "staging_bytes"),
        ({"handshake_timeout": 0}, "handshake_timeout"),
    ],
)
def test_options_are_checked(options, text):
    with pytest.raises(ValueError, match=text):
        TcpTransport(**options)
