"""Cap, ledger failures and restarts as a client sees them."""

import contextlib
import json
import sqlite3
import threading
import time

import openai
import pytest
from postgresql_proxy import Proxy
from server.waiting import eventually
from sqlalchemy import event

from reticent.server.logs import JsonFormatter
from reticent.server.settings import OnExhausted

NATS = 2.0**-32
ASK = {"model": "tiny", "prompt": "abc"}


def test_64_clients_at_the_cap_never_pass_it(database_url, live):
    server = live(total_budget=500 * NATS, max_concurrent=8, max_queue=64, database_url=database_url)
    clients = [server.openai(server.key(name)) for name in ("one", "two")]
    received, refused, lock = [], [], threading.Lock()

    def ask(number):
        try:
            answer = clients[number % 2].completions.create(**ASK, max_tokens=10)
        except openai.RateLimitError as error:
            with lock:
                refused.append(error.code)
            return
        with lock:
            received.append((number % 2, answer.usage.completion_tokens))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = server.ledger.curator.state
    total = sum(tokens for _, tokens in received)
    assert total == state.tokens_released <= 500
    assert len(received) + len(refused) == 64
    assert set(refused) <= {"insufficient_quota"}
    assert state.spent_units <= state.cap_units
    if refused:
        assert total == 500
    shares = [sum(tokens for key, tokens in received if key == which) for which in (0, 1)]
    # Each key has 32 askers of up to 10 tokens; at most one batch may go to one key alone.
    assert abs(shares[0] - shares[1]) <= 8 * 10 + 40


def test_a_spent_budget_is_429_and_a_stream_says_so_at_its_end(live):
    server = live(total_budget=5 * NATS)
    client = server.openai()
    stream = client.completions.create(**ASK, max_tokens=30, n=2, stream=True, stream_options={"include_usage": True})
    usage, error = None, None
    try:
        for chunk in stream:
            usage = chunk.usage or usage
    except openai.APIError as caught:
        error = caught
    assert error is not None
    assert error.code == "insufficient_quota"
    assert usage.privacy["tokens_charged"] == 5
    assert usage.privacy["deployment"]["nats_left"] == 0
    assert usage.reticent["ended_by"] == "budget"
    for stream_or_not in (False, True):
        with pytest.raises(openai.RateLimitError, match="budget") as refusal:
            client.completions.create(**ASK, stream=stream_or_not)
        assert refusal.value.type == "insufficient_quota"
    assert server.ledger.curator.state.tokens_released == 5


def test_an_answer_that_the_budget_cuts_is_shown_as_it_was_charged(live):
    server = live(total_budget=3 * NATS)
    answer = server.openai().completions.create(**ASK, max_tokens=3 + 30, seed=1)
    if answer.usage.completion_tokens == 3:
        assert answer.choices[0].finish_reason == "length"
        assert answer.choices[0].reticent == {"source": "private", "ended_by": "budget"}
    assert server.ledger.curator.state.tokens_released == answer.usage.completion_tokens <= 3


def test_the_public_model_goes_on_and_is_marked(live):
    server = live(total_budget=3 * NATS, on_exhausted=OnExhausted.PUBLIC)
    client = server.openai()
    mixed = client.completions.create(**ASK, max_tokens=30, n=2)
    assert {choice.reticent["source"] for choice in mixed.choices} == {"private, then public"}
    assert mixed.usage.privacy["tokens_charged"] == 3
    assert mixed.usage.completion_tokens > 3
    public = client.completions.create(**ASK, max_tokens=5)
    assert public.usage.reticent["source"] == public.choices[0].reticent["source"] == "public"
    assert public.usage.privacy["tokens_charged"] == 0
    chunks = list(client.completions.create(**ASK, max_tokens=5, stream=True))
    assert {chunk.choices[0].reticent["source"] for chunk in chunks} == {"public"}
    assert server.ledger.curator.state.tokens_released == 3


@contextlib.contextmanager
def full_disk(ledger):
    """SQLite's own limit on pages makes the writer's commits fail with SQLITE_FULL, as a full disk does."""
    writer = ledger._opened.writer
    unlimited, limited = writer._engine, ledger.database.engine(write=True)

    @event.listens_for(limited, "connect")
    def limit(connection, _record):
        connection.execute("PRAGMA max_page_count = 1").close()

    writer._engine = limited
    writer._drop()
    try:
        yield
    finally:
        writer._engine = unlimited
        writer._drop()


def test_full_disk_is_503_with_nothing_shown_and_service_resumes(live):
    server = live()
    client = server.openai()
    client.completions.create(**ASK, max_tokens=5)
    before = server.ledger.curator.state.tokens_released
    with full_disk(server.ledger):
        failed = None
        shown = 0
        for stream in (False, True) * 6:
            try:
                answer = client.completions.create(**ASK, max_tokens=90, stream=stream)
                for piece in answer if stream else [answer]:
                    shown += len(piece.choices[0].text) if piece.choices else 0
            except openai.APIError as error:
                failed = error
                break
        assert failed is not None
        assert failed.code == "ledger_unavailable"
        with server.http() as http:
            ready = http.get("/readyz")
            if ready.status_code == 503:
                assert ready.json() == {"ready": False, "reason": "the ledger cannot be written", "budget_spent": False}
            assert http.get("/healthz").status_code == 200
    with server.http() as http:
        assert http.get("/readyz").json() == {"ready": True, "reason": None, "budget_spent": False}
        metrics = http.get("/metrics").text
    assert client.completions.create(**ASK, max_tokens=5).usage.completion_tokens >= 1
    assert "reticent_ledger_failures_total 0.0" not in metrics
    assert server.ledger.curator.state.tokens_released > before


def test_a_database_locked_by_another_hides_the_tokens_then_serves_again(live, tmp_path):
    server = live()
    client = server.openai()
    client.completions.create(**ASK, max_tokens=2)
    before = server.ledger.curator.state.tokens_released
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with server.http() as http:
        response = http.post("/v1/completions", json=ASK | {"max_tokens": 3})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "ledger_unavailable"
    assert int(response.headers["retry-after"]) >= 1
    other.execute("ROLLBACK")
    other.close()
    assert client.completions.create(**ASK, max_tokens=2).usage.completion_tokens >= 1
    assert server.ledger.curator.state.tokens_released > before


def test_postgresql_gone_during_load_hides_tokens_and_comes_back(live, postgresql_url):
    proxy, url = Proxy.before(postgresql_url)
    with proxy:
        server = live(database_url=url)
        client = server.openai(server.key("k", total_tokens=100_000))
        outcomes, lock, stop = [], threading.Lock(), threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    tokens = client.completions.create(**ASK, max_tokens=8).usage.completion_tokens
                except openai.InternalServerError as error:
                    tokens = error.status_code
                    time.sleep(0.05)
                with lock:
                    outcomes.append(tokens)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: any(tokens < 100 for tokens in outcomes))
        proxy.down = True
        wait_for(lambda: outcomes.count(503) >= 4)
        with server.http() as http:
            assert http.get("/readyz").status_code == 503
            assert http.get("/healthz").status_code == 200
        proxy.down = False
        count = len(outcomes)
        wait_for(lambda: any(tokens < 100 for tokens in outcomes[count:]))
        stop.set()
        for thread in threads:
            thread.join()
        with server.http() as http:
            assert http.get("/readyz").status_code == 200
        assert set(outcomes) <= {*range(1, 9), 503}
        shown = sum(tokens for tokens in outcomes if tokens < 100)
        assert server.ledger.curator.state.tokens_released >= shown
        assert sum(server.service.usage.tokens_by_key().values()) == server.ledger.curator.state.tokens_released


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def completion_record(caplog):
    """The line about a completion, which is written once the answer has left."""
    return next((record for record in caplog.records if getattr(record, "route", "") == "/v1/completions"), None)


def test_logs_name_requests_and_hold_no_texts_unless_asked(live, caplog):
    caplog.set_level("INFO", logger="reticent.server")
    secret_text = "zebra-crossing"
    server = live()
    key = server.key("k")
    server.openai(key).completions.create(model="tiny", prompt=secret_text, max_tokens=3)
    eventually(lambda: completion_record(caplog))
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    line = next(line for line in lines if line.get("route") == "/v1/completions")
    assert line["status"] == 200
    assert line["key_id"] == key.split("-")[1]
    assert line["prompt_tokens"] == len(secret_text)
    assert line["request_id"].startswith("req-")
    assert secret_text not in json.dumps(lines)
    assert key not in json.dumps(lines)
    assert "num_active" not in json.dumps(lines)


def test_texts_are_logged_where_the_operator_asked(live, caplog):
    caplog.set_level("INFO", logger="reticent.server")
    server = live(log_texts=True)
    answer = server.openai().completions.create(model="tiny", prompt="zebra", max_tokens=3)
    record = eventually(lambda: completion_record(caplog))
    assert record.prompts == ["zebra"]
    assert record.answers == [answer.choices[0].text]
