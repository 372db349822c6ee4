"""A request stopped by whoever asked: its stream ends whole, with what it cost; nobody else can stop it."""

import json

import pytest

from reticent.ledger.api_keys import Scope

LONG = {"model": "tiny", "max_tokens": 60, "stream": True, "stream_options": {"include_usage": True}}


def read_events(response):
    return [line.removeprefix("data: ") for line in response.iter_lines() if line]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_stopped_stream_ends_whole_with_its_exact_cost(live, halt_engine, path):
    server = live()
    go_on = halt_engine(server)
    ask = LONG | ({"prompt": "abc"} if path == "completions" else {"messages": [{"role": "user", "content": "abc"}]})
    with server.http() as http, server.http() as other:
        headers = {"X-Request-Id": "letter-1"}
        with http.stream("POST", f"/v1/{path}", json=ask, headers=headers) as response:
            assert other.post("/try/stop", json={"request_id": "letter-2"}).json() == {"stopped": False}
            assert other.post("/try/stop", json={"request_id": "letter-1"}).json() == {"stopped": True}
            go_on.set()
            *chunks, closing, usage, done = read_events(response)
        assert done == "[DONE]"
        assert not any("error" in json.loads(chunk) for chunk in chunks)
        assert json.loads(closing)["choices"][0]["finish_reason"] == "stop"
        released = server.ledger.curator.state.tokens_released
        assert json.loads(usage)["usage"]["privacy"]["tokens_charged"] == released
        assert 0 < released < 60
        assert other.post("/try/stop", json={"request_id": "letter-1"}).json() == {"stopped": False}


def test_nobody_stops_the_request_of_another_key(live, halt_engine):
    server = live()
    go_on = halt_engine(server)
    own, another = server.key("ward 3"), server.key("ward 4", Scope.GENERATE, Scope.ADMIN)
    with server.http(own) as http, server.http(another) as other, server.http() as stranger:
        with http.stream(
            "POST", "/v1/completions", json=LONG | {"prompt": "abc"}, headers={"X-Request-Id": "same"}
        ) as response:
            assert other.post("/try/stop", json={"request_id": "same"}).json() == {"stopped": False}
            assert stranger.post("/try/stop", json={"request_id": "same"}).status_code == 401
            go_on.set()
            *_, usage, done = read_events(response)
        assert done == "[DONE]"
        assert json.loads(usage)["usage"]["privacy"]["tokens_charged"] == 60


@pytest.mark.parametrize("body", [{}, {"request_id": 1}, {"request_id": "x" * 129}, {"request_id": "a", "more": 1}, []])
def test_stop_needs_one_request_id(shared, body):
    with shared.http() as http:
        response = http.post("/try/stop", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_page_data_tell_a_key_its_own_spending_and_operators_everything(live):
    server = live(total_budget=500 * 2.0**-32, max_tokens=90)
    ward, operator = server.key("ward 3", total_tokens=200), server.key("both", Scope.GENERATE, Scope.ADMIN)
    for key, tokens in ((ward, 30), (operator, 12)):
        server.openai(key).completions.create(model="tiny", prompt="abc", max_tokens=tokens)
    with server.http(ward) as http:
        own = http.get("/try/data").json()
    with server.http(operator) as http:
        everything = http.get("/try/data").json()
    with server.http(server.key("only metrics", Scope.ADMIN)) as http:
        assert http.get("/try/data").status_code == 403
    with server.http() as http:
        assert http.get("/try/data").status_code == 401
    assert own["key"] == {"tokens_charged": 30, "nats_charged": 30 * 2.0**-32, "tokens_left": 170}
    assert own["deployment"] is None
    assert everything["key"]["tokens_charged"] == 12
    assert everything["deployment"]["tokens_charged"] == 42
    assert everything["deployment"]["nats_left"] == 458 * 2.0**-32
    shared_by_all = ("nats_cap", "half_at_cap", "not_bounded", "max_tokens", "has_chat")
    assert {name: own[name] for name in shared_by_all} == {name: everything[name] for name in shared_by_all}
    assert (own["nats_cap"], own["max_tokens"], own["has_chat"]) == (500 * 2.0**-32, 90, True)


def test_page_data_without_keys_cap_or_template(live):
    with live(chat_template=None).http() as http:
        found = http.get("/try/data").json()
    assert (found["key_name"], found["key"], found["nats_cap"], found["half_at_cap"]) == (None, None, None, None)
    assert found["deployment"]["tokens_charged"] == 0
    assert not found["has_chat"]
