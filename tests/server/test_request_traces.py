"""What operators and clients are told of each request: one id everywhere, who was refused and why, rates, times."""

import json
import signal
import sqlite3

import httpx
import openai
import pytest
from server.waiting import eventually

from reticent.ledger.api_keys import Scope
from reticent.ledger.usage import Spending
from reticent.server.logs import JsonFormatter
from reticent.server.metering import KeyMeter

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 3}
NATS = 2.0**-32


def lines_about(caplog, request_id):
    """The log's lines about a request, once the line that ends it is there."""
    lines = [json.loads(JsonFormatter().format(record)) for record in list(caplog.records)]
    named = [line for line in lines if request_id in (line.get("request_id"), *line.get("request_ids", ()))]
    return named if any(line["event"] == "request" for line in named) else None


def metric(http, name):
    lines = http.get("/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["ward-3/2026.12.01:a_b=c+d@e"], True),
        (["a" * 128], True),
        (["a" * 129], False),
        ([""], False),
        (["two words"], False),
        (['quote"'], False),
        (["-dash first"], False),
        (["one", "two"], False),
    ],
)
def test_a_well_formed_id_is_taken_and_another_replaced(shared, given, taken):
    with shared.http() as http:
        answer = http.get("/v1/models", headers=[("X-Request-Id", value) for value in given])
        named = answer.headers["x-request-id"]
        assert (named == given[0]) if taken else named.startswith("req-")
        refused = http.post("/nowhere", headers={"X-Request-Id": "mine"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (404, "mine")


def test_an_answer_and_its_log_line_have_the_id_and_what_it_took(live, caplog):
    caplog.set_level("INFO", logger="reticent.server")
    server = live()
    with server.http(server.key()) as http:
        answer = http.post("/v1/completions", json=ASK, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    [line] = eventually(lambda: lines_about(caplog, "mine-1"))
    assert line["answer_id"] == answer.json()["id"]
    assert 0 <= line["queue_milliseconds"] <= line["first_token_milliseconds"] <= line["milliseconds"]
    assert "refusal" not in line
    assert "client" not in line


def test_what_the_engine_says_of_an_answer_has_its_requests_id(live, caplog, tmp_path):
    caplog.set_level("INFO", logger="reticent.server")
    server = live()
    with server.http(server.key()) as http:
        assert http.post("/v1/completions", json=ASK).status_code == 200
        other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert http.post("/v1/completions", json=ASK, headers={"X-Request-Id": "locked"}).status_code == 503
        other.execute("ROLLBACK")
        other.close()
        server.service.batcher._engine = Unreadable()
        assert http.post("/v1/completions", json=ASK, headers={"X-Request-Id": "broken"}).status_code == 500
    locked = eventually(lambda: lines_about(caplog, "locked"))
    assert {line["event"].partition(":")[0] for line in locked} == {"nothing was released", "request"}
    broken = eventually(lambda: lines_about(caplog, "broken"))
    assert [line["event"] for line in broken] == ["a prompt could not be read", "request"]
    assert broken[0]["answer_id"].startswith(broken[1]["answer_id"])
    assert broken[0]["key_id"] == broken[1]["key_id"]


class Unreadable:
    def prefill_in_chunks(self, prompt):
        raise RuntimeError("no")
        yield


def test_a_defect_is_answered_and_logged_under_the_requests_id(live, caplog, monkeypatch):
    caplog.set_level("INFO", logger="reticent.server")
    server = live()

    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr("reticent.server.routes_openai._model", fail)
    with server.http() as http:
        answer = http.get("/v1/models", headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    assert answer.json()["error"]["code"] == "internal_error"
    lines = eventually(lambda: lines_about(caplog, "mine"))
    assert [line["event"] for line in lines] == ["a request failed", "request"]
    assert "RuntimeError: broken" in lines[0]["traceback"]


def test_refusals_name_reason_key_and_client(live, caplog):
    caplog.set_level("INFO", logger="reticent.server")
    server = live(max_body_bytes=1000)
    keys = {
        "quota": server.key(total_tokens=1),
        "rate_limit": server.key(tokens_per_minute=2),
        "scope": server.key("operator", Scope.ADMIN),
        "revoked": server.key("gone"),
    }
    server.keys.revoke(keys["revoked"].split("-")[1])
    server.service.keys._read_at = -float("inf")
    with server.http(keys["quota"]) as http:
        http.post("/v1/completions", json=ASK)
    asked = {
        "quota": (keys["quota"], ASK),
        "request_above_rate": (keys["rate_limit"], ASK),
        "missing_scope": (keys["scope"], ASK),
        "revoked_api_key": (keys["revoked"], ASK),
        "invalid_api_key": ("rtc-nobody-x", ASK),
        "model_not_found": (keys["quota"], ASK | {"model": "other"}),
        "bad_request": (keys["quota"], {"model": "tiny"}),
        "request_too_large": (keys["quota"], ASK | {"prompt": "a" * 1000}),
    }
    for reason, (key, body) in asked.items():
        with server.http(key) as http:
            answer = http.post("/v1/completions", json=body, headers={"X-Request-Id": reason})
        assert answer.status_code >= 400
        assert answer.headers["x-should-retry"] == "false", reason
        [line] = eventually(lambda reason=reason: lines_about(caplog, reason))
        assert line["refusal"] == reason
        assert line["client"] == "127.0.0.1"
        expected = None if reason in ("invalid_api_key", "request_too_large") else key.split("-")[1]
        assert line.get("key_id") == expected, reason
    with server.http(server.key("operations", Scope.ADMIN)) as http:
        for reason in asked:
            assert metric(http, f'reticent_refusals_total{{reason="{reason}"}}') == 1.0, reason
        summary = http.get("/dashboard/data").json()
    assert {entry["reason"]: entry["count"] for entry in summary["refusals"]} == dict.fromkeys(asked, 1)
    assert not any(text in caplog.text for text in keys.values())


def test_a_spent_budget_is_asked_once_by_openais_client(live):
    server = live(total_budget=NATS)
    with server.http() as http:
        http.post("/v1/completions", json=ASK)
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=3, timeout=60)
        with pytest.raises(openai.RateLimitError):
            client.completions.create(**ASK)
        assert metric(http, 'reticent_refusals_total{reason="budget"}') == 1.0


def test_a_stream_that_the_budget_ends_is_a_refusal_too(live, caplog):
    caplog.set_level("INFO", logger="reticent.server")
    server = live(total_budget=2 * NATS)
    server.service.prompts.stop_tokens = frozenset()
    with server.http() as http:
        cut = ASK | {"stream": True, "max_tokens": 9}
        assert '"insufficient_quota"' in http.post("/v1/completions", json=cut, headers={"X-Request-Id": "cut"}).text
        [line] = eventually(lambda: lines_about(caplog, "cut"))
        assert (line["status"], line["refusal"], line["client"]) == (200, "budget", "127.0.0.1")
        assert metric(http, 'reticent_refusals_total{reason="budget"}') == 1.0


def test_answers_are_timed_and_counted_by_what_ended_them(live):
    server = live()
    with server.http() as http:
        assert http.get("/dashboard/data").json()["durations"][0]["median"] is None
        for _ in range(3):
            http.post("/v1/completions", json=ASK | {"n": 2})
        with http.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as stream:
            stream.read()
        names = ("queue_seconds", "first_token_seconds", "answer_seconds")
        eventually(lambda: metric(http, "reticent_answer_seconds_count") == 7.0 or None)
        assert [metric(http, f"reticent_{name}_count") for name in names] == [7.0] * 3
        sums = [metric(http, f"reticent_{name}_sum") for name in names]
        assert sums == sorted(sums)
        ended = [metric(http, f'reticent_answers_total{{ended_by="{ending}"}}') for ending in ("length", "stop")]
        assert sum(ended) == 7.0
        assert metric(http, 'reticent_request_seconds_count{route="/v1/completions"}') == 4.0
        queue, first, whole = http.get("/dashboard/data").json()["durations"]
    assert [queue["name"], first["name"], whole["name"]] == ["start (time in the queue)", "first token", "end"]
    assert queue["median"] <= first["median"] <= whole["median"] <= whole["ninety_fifth"]


def test_keys_with_a_rate_are_told_what_is_left(live):
    server = live()
    rated, free = server.key(tokens_per_minute=600), server.key()
    with server.http(rated) as http:
        assert http.get("/v1/models").headers["x-ratelimit-remaining-tokens"] == "600"
        answer = http.post("/v1/completions", json=ASK)
        assert answer.headers["x-ratelimit-limit-tokens"] == "600"
        # What was reserved and not written is back by now, and a little may have come since.
        assert 597 <= int(answer.headers["x-ratelimit-remaining-tokens"]) <= 600
        assert http.post("/v1/completions", json={}).headers["x-ratelimit-limit-tokens"] == "600"
    with server.http(free) as http:
        assert not [name for name in http.post("/v1/completions", json=ASK).headers if "ratelimit" in name]


def test_rates_in_numbers():
    now = [0.0]
    meter = KeyMeter(Spending(), clock=lambda: now[0])
    meter.set_quotas(None, None)
    assert meter.rate() is None
    meter.set_quotas(None, 120)

    def told():
        limit, left, reset = meter.rate().headers().values()
        return int(limit), int(left), reset

    assert told() == (120, 120, "0ms")
    meter.reserve(100)
    assert told() == (120, 20, "50s")
    now[0] = 10.25
    assert told() == (120, 40, "40s")
    now[0] = 49.75
    assert told() == (120, 119, "250ms")
    meter.set_quotas(None, 1)
    meter.reserve(1)
    assert told() == (1, 0, "1m0s")


def test_client_addresses_are_named_as_configured(serve):
    def first_lines(*options):
        server = serve(*options)
        headers = {"X-Forwarded-For": "203.0.113.7, 198.51.100.9"}
        statuses = [httpx.get(f"{server.url}{path}", headers=headers).status_code for path in ("/", "/nowhere")]
        assert statuses == [200, 404]
        assert server.end(signal.SIGTERM) == 0
        lines = [line for line in server.log() if line["event"] == "request"]
        server.errors.clear()
        return [line.get("client") for line in lines]

    assert first_lines() == [None, "198.51.100.9"]
    assert first_lines("--log-addresses", "never") == [None, None]
    always = ("--log-addresses", "always")
    assert first_lines(*always, "--trusted-proxy", "192.0.2.0/24") == ["127.0.0.1"] * 2
    both = ("--trusted-proxy", "127.0.0.1", "--trusted-proxy", "198.51.100.0/24")
    assert first_lines(*always, *both) == ["203.0.113.7"] * 2
