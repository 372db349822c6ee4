"""Whatever a client sends, it gets a 4xx in OpenAI's shape: malformed, huge, mistyped, too many, too long."""

import json
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

GOOD = {"model": "tiny", "prompt": "abc", "max_tokens": 1}


def head_of_post(length):
    lines = (
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def openai_error(response):
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe\xfa", b'{"model": "\xc3\x28"}',
        b'{"model": "tiny", "prompt": NaN}',
        b'{"model": "tiny", "prompt": "\\ud800", "max_tokens": 1}', b"[" * 20_000, b"1" * 5000,
        b'{"model": "tiny", "prompt": "a", "temperature": Infinity}', b'{"model": "tiny", "prompt": "a", "n": 1e400}',
        b'{"model": "tiny", "prompt": "a", "n": true}', b'{"model": "tiny", "prompt": "a", "max_tokens": "5"}',
        b'{"model": "tiny", "prompt": [1.5]}', b'{"model": "tiny", "prompt": [true]}',
        b'{"model": "tiny", "prompt": [-1]}',
        b'{"model": "tiny", "prompt": ["a", 1]}', b'{"model": "tiny", "prompt": [[]]}', b'{"prompt": "a"}',
        b'{"model": "tiny", "prompt": "a", "seed": 99999999999999999999999}', b'{"model": "tiny", "prompt": {"a": 1}}',
    ],
)  # fmt: skip
def test_malformed_bodies_are_400_and_cost_nothing(shared, body):
    before = shared.ledger.curator.state.tokens_released
    with shared.http() as http:
        response = http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert openai_error(response)["type"] == "invalid_request_error"
    assert shared.ledger.curator.state.tokens_released == before


def test_other_content_types_methods_and_paths(shared):
    with shared.http() as http:
        text = http.post("/v1/completions", content=json.dumps(GOOD), headers={"Content-Type": "text/plain"})
        assert text.status_code == 400
        openai_error(text)
        for response, status in ((http.get("/v1/completions"), 405), (http.post("/nowhere"), 404)):
            assert response.status_code == status
            openai_error(response)
        assert http.get("/docs").status_code == 404
        assert "x-request-id" in text.headers


@pytest.mark.parametrize("size", [(1 << 20) + 1, 3 << 20, 40 << 20])
def test_huge_bodies_are_413(shared, size):
    """Sent over a plain socket, as a client that is refused midway may not be able to write the rest."""
    address = urlsplit(shared.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(head_of_post(size))
        if size < 10 << 20:
            connection.sendall(b" " * size)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"request_too_large"' in answer


def test_huge_bodies_without_a_declared_length_are_413(shared):
    with shared.http() as http:
        response = http.post(
            "/v1/completions",
            content=(b" " * 65536 for _ in range(20)),
            headers={"Content-Type": "application/json"},
        )
    assert response.status_code == 413
    openai_error(response)


class Gated:
    """An ensemble that stands still after some steps until the gate is opened."""

    def __init__(self, server, steps):
        self._engine, self._steps = server.service.batcher._engine, steps
        self.gate = threading.Event()
        server.service.batcher._engine = self

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def extend(self, contexts, tokens, drafts=None):
        self._steps -= 1
        if self._steps <= 0:
            self.gate.wait(60)
        self._engine.extend(contexts, tokens)


def test_a_full_queue_is_429_and_tells_when_to_come_back(live):
    server = live(max_concurrent=1, max_queue=2)
    gated = Gated(server, steps=1)
    responses = []
    with server.http() as http:
        assert http.post("/v1/completions", json=GOOD | {"n": 4}).status_code == 400

        def ask():
            responses.append(http.post("/v1/completions", json=GOOD | {"max_tokens": 9}))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        # One is decoded and two wait.
        assert wait_until(lambda: len(responses) == 5)
        gated.gate.set()
        for thread in threads:
            thread.join()
    statuses = sorted(response.status_code for response in responses)
    assert statuses == [200] * 3 + [429] * 5
    for response in responses[:5]:
        assert openai_error(response)["code"] == "rate_limit_exceeded"
        assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_stops_its_answers(live, streamed):
    server = live()
    gated = Gated(server, steps=4)
    batcher = server.service.batcher
    if streamed:
        body = GOOD | {"max_tokens": 90, "stream": True, "n": 2}
        with server.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_bytes())
    else:
        leave_without_reading(server)
    # While the gate is shut no answer can come to its end by itself.
    assert wait_until(lambda: all(job.cancelled for job in list(batcher._active)))
    gated.gate.set()
    assert wait_until(lambda: batcher.num_active == 0)
    assert server.ledger.curator.state.tokens_released <= 12


def leave_without_reading(server):
    address = urlsplit(server.url)
    body = json.dumps(GOOD | {"max_tokens": 90}).encode()
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head_of_post(len(body)) + body)
        assert wait_until(lambda: server.service.batcher.num_active)


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def test_every_route_keeps_to_the_openapi_document(shared):
    """schemathesis, from the document the server gives: only declared statuses, types and shapes, and never a 5xx."""
    schema = schemathesis.openapi.from_url(f"{shared.url}/openapi.json")
    kept = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    tried = []

    def keep_it_short(case):
        if isinstance(case.body, dict):
            # What is valid would otherwise be answered at length.
            case.body |= {"model": "tiny", "max_tokens": 1, "n": 1} if len(tried) % 2 else {}

    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=25, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck), derandomize=True,
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def ask(case):
            keep_it_short(case)
            tried.append(case.operation.path)
            case.call_and_validate(checks=kept)

        ask()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/metrics", "/readyz"} <= set(tried)
