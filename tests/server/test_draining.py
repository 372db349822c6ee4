"""The server told to stop while answers take longer than its grace: everyone hears why, and the log stays clean."""

import json
import signal
import socket
import threading

import httpx
import pytest
from server.waiting import eventually

ASK = {"model": "run", "prompt": "abc", "max_tokens": 90, "n": 16}


def code_of(response):
    return response.json()["error"]["code"]


def read_stream(url, has_begun, ends):
    """Note the last two events of a stream."""
    with httpx.stream("POST", f"{url}/v1/completions", json=ASK | {"stream": True}, timeout=120) as response:
        assert response.status_code == 200
        lines = []
        for line in response.iter_lines():
            has_begun.set()
            if line:
                lines.append(line.removeprefix("data: "))
        ends.append(lines[-2:])


def half_a_request(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: 100")
    connection.sendall(("\r\n".join(head) + '\r\n\r\n{"model":').encode())
    return connection


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGHUP])
def test_answers_longer_than_the_grace_end_with_a_reason(serve, stop_signal):
    # Thousands of steps are wanted, one answer at a time, each step with a commit: far more than the grace holds.
    server = serve("--drain-seconds", "2", "--max-concurrent", "1", "--max-queue", "400")
    has_begun, ends, refused = threading.Event(), [], []

    def ask():
        refused.append(httpx.post(f"{server.url}/v1/completions", json=ASK, timeout=120))

    threads = [threading.Thread(target=read_stream, args=(server.url, has_begun, ends))]
    threads[0].start()
    assert has_begun.wait(60)
    threads += [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads[1:]:
        thread.start()
    eventually(lambda: float(metric(server, "reticent_answers_waiting")) >= 100 or None, seconds=60)
    with half_a_request(server.port) as waiting, httpx.Client(base_url=server.url) as client:
        late = {}

        def ask_while_draining():
            eventually(lambda: client.get("/readyz").status_code == 503 or None)
            late["answer"] = httpx.post(f"{server.url}/v1/completions", json=ASK | {"n": 1, "max_tokens": 1})
            late["health"] = client.get("/healthz")

        threads.append(threading.Thread(target=ask_while_draining))
        threads[-1].start()
        assert server.end(stop_signal) == 0
        for thread in threads:
            thread.join(60)
        cut = b"".join(iter(lambda: waiting.recv(1 << 16), b""))
    [[error, done]] = ends
    assert (json.loads(error)["error"]["code"], done) == ("shutting_down", "[DONE]")
    assert [(response.status_code, code_of(response)) for response in refused] == [(503, "shutting_down")] * 10
    assert (late["answer"].status_code, code_of(late["answer"])) == (503, "shutting_down")
    assert late["health"].status_code == 200
    assert cut.startswith(b"HTTP/1.1 503 ")
    assert b'"shutting_down"' in cut
    assert "Traceback" not in "".join(server.errors)
    assert server.log()[-1]["event"] == "stopped"


def metric(server, name):
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name} "))
