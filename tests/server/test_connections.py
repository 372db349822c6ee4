"""Connections of a real server process over raw sockets: slow, silent, unread, too many, and no descriptor left."""

import contextlib
import json
import resource
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest
from server.waiting import eventually

from reticent.errors import InvalidValueError
from reticent.server import connections
from reticent.server.settings import ConnectionLimits

ASK = {"model": "run", "prompt": "abc", "max_tokens": 1}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PATIENT = ("--head-timeout", "600", "--body-timeout", "600", "--write-timeout", "600")


@contextlib.contextmanager
def connected(server, first=b""):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(first)
        yield connection


def everything(connection):
    """What comes until the server closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return b""


def error_in(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: req-" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


def trickle(connection, byte=b"a"):
    """Send a byte at a time until the server hangs up."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            connection.sendall(byte)
            time.sleep(0.02)


def refusals(server):
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    prefix = 'reticent_refusals_total{reason="'
    return {line.removeprefix(prefix).partition('"')[0] for line in lines if line.startswith(prefix)}


def test_slow_silent_and_unread_connections_end(serve):
    server = serve("--head-timeout", "0.5", "--body-timeout", "0.5", "--write-timeout", "0.5")
    with connected(server) as silent:
        assert everything(silent) == b""
    with connected(server, b"GET /healthz HTTP/1.1\r\nHost: loc") as connection:
        status, error = error_in(everything(connection))
        assert (status, error["code"]) == (408, "request_timeout")
    with connected(server, b"GET /healthz HTTP/1.1\r\nX-Pad: ") as connection:
        trickle(connection)
    with connected(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /heal")
        assert b"HTTP/1.1 408 " in everything(connection)
    with connected(server, POST + b"Content-Length: 100\r\n\r\n{") as connection:
        assert error_in(everything(connection))[0] == 408
    with connected(
        server, POST.replace(b"POST /v1/completions", b"GET /healthz") + b"Content-Length: 9999\r\n\r\n"
    ) as slow:
        trickle(slow)
    with connected(server, b"this is not HTTP\r\n\r\n") as connection:
        assert error_in(everything(connection))[0] == 400
    # Many answers in a row are asked for and none is read, until no buffer has room.
    with connected(server, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000) as unread:
        eventually(lambda: "answer_unread" in refusals(server) or None, 60)
        unread.close()
    assert {"no_request", "slow_head", "slow_body", "malformed_http", "answer_unread"} <= refusals(server)
    assert httpx.post(f"{server.url}/v1/completions", json=ASK).status_code == 200
    assert server.end(signal.SIGTERM) == 0
    log = server.log()
    assert {"no_request", "slow_head", "slow_body"} <= {line.get("refusal") for line in log}
    assert not any("traceback" in line for line in log)


def test_connections_over_the_limit_are_told_and_then_dropped_and_probes_pass(serve):
    server = serve("--max-connections", "4", *PATIENT)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connected(server, b"GET /healthz HTTP/1.1\r\nX-Pad: "))
        answer = httpx.get(f"{server.url}/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_connections")
        assert int(answer.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        for _ in range(32):
            stack.enter_context(connected(server, b"GET /healthz HTTP/1.1\r\nX-Pad: "))
        with connected(server) as dropped:
            assert everything(dropped) == b""
    # The server learns of each end by itself.
    eventually(lambda: (httpx.get(f"{server.url}/v1/models").status_code == 200) or None)
    assert server.end(signal.SIGTERM) == 0
    assert "too_many_connections" in {line.get("refusal") for line in server.log()}


def test_without_descriptors_the_log_stays_small_and_json_and_service_resumes(serve):
    """The limit is lowered below what the server planned with, as when something else takes the descriptors."""
    server = serve(*PATIENT)
    used = len(list(Path(f"/proc/{server.process}/fd").iterdir()))
    resource.prlimit(server.process, resource.RLIMIT_NOFILE, (used + 12, used + 12))
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connected(server, b"GET /healthz HTTP/1.1\r\nX-Pad: "))
        # Seen twice, so the server has tried again.
        eventually(lambda: [line for line in server.errors if '"EMFILE"' in line][1:] or None, 60)
    answer = eventually(lambda: answered(server), 60)
    assert answer["usage"]["completion_tokens"] == 1
    assert server.end(signal.SIGTERM) == 0
    log = server.log()
    assert sum(map(len, server.errors)) < 100_000
    assert len([line for line in log if line.get("cause") == "EMFILE"]) < 100
    assert all({"time", "level", "event"} <= set(line) for line in log)


def answered(server):
    with contextlib.suppress(httpx.TransportError):
        response = httpx.post(f"{server.url}/v1/completions", json=ASK)
        return response.json() if response.status_code == 200 else None
    return None


def test_limit_leaves_descriptors_for_the_ledger(monkeypatch):
    limits = [(256, 300)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert connections.raise_connection_limit(512) == 300 - 160
    assert limits[-1] == (300, 300)
    assert connections.raise_connection_limit(20) == 20
    limits.append((1024, resource.RLIM_INFINITY))
    assert connections.raise_connection_limit(2000) == 2000
    assert limits[-1] == (2160, resource.RLIM_INFINITY)
    limits.append((100, 100))
    with pytest.raises(InvalidValueError, match="LimitNOFILE"):
        connections.raise_connection_limit(512)


def test_a_taken_port_is_named_and_unknown_hosts_too():
    [taken] = connections.open_sockets("127.0.0.1", 0)
    with taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidValueError, match=f"127.0.0.1 port {port}"):
            connections.open_sockets("127.0.0.1", port)
    with pytest.raises(InvalidValueError, match=r"nowhere\.invalid"):
        connections.open_sockets("nowhere.invalid", 0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_connections": 0}, "max-connections"),
        ({"head_seconds": 0.0}, "head-timeout"),
        ({"body_seconds": float("nan")}, "body-timeout"),
        ({"write_seconds": float("inf")}, "write-timeout"),
        ({"trusted_proxies": ("proxy.local",)}, "trusted-proxy"),
    ],
)
def test_bad_limits_are_refused_by_name(values, named):
    with pytest.raises(InvalidValueError, match=named):
        ConnectionLimits(**values)
