"""What clients send back is taken, and what is refused is refused for its true reason, with the field named."""

import gzip
import inspect
import json

import openai
import pytest
from openai.types.chat import ChatCompletionMessage, ParsedChatCompletionMessage

from reticent.server.schemas import ChatCompletionRequest, CompletionRequest

QUESTION = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
TRANSPORT = {"extra_headers", "extra_query", "extra_body", "timeout"}


def test_an_answers_message_is_taken_back_as_the_official_client_holds_it(shared):
    client = shared.openai()
    first = client.chat.completions.create(model="tiny", messages=[QUESTION], max_tokens=2).choices[0].message
    parsed = ParsedChatCompletionMessage(role="assistant", content="hi")
    for message in (first, first.model_dump(), parsed, parsed.model_dump()):
        again = client.chat.completions.create(model="tiny", messages=[QUESTION, message, QUESTION], max_tokens=1)
        assert again.usage.prompt_tokens == len(f"u:hello\na:{dict(message)['content']}\nu:hello\na:".encode())


def test_an_answers_message_is_taken_back_as_it_was_sent(shared):
    with shared.http() as http:
        body = {"model": "tiny", "messages": [QUESTION], "max_tokens": 1}
        answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        body["messages"] = [QUESTION, answer, QUESTION]
        assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_a_stream_put_together_by_the_official_client_is_taken_back(shared):
    client = shared.openai()
    with client.chat.completions.stream(model="tiny", messages=[QUESTION], max_tokens=3) as stream:
        for _ in stream:
            pass
        # The final completion is refused by the library itself where an answer ended by its length.
        message = stream.current_completion_snapshot.choices[0].message
    for sent in (message, message.model_dump()):
        client.chat.completions.create(model="tiny", messages=[QUESTION, sent, QUESTION], max_tokens=1)


@pytest.mark.parametrize("nothing", [None, "", [], {}])
def test_every_field_of_the_clients_messages_may_say_nothing(shared, nothing):
    fields = set(ChatCompletionMessage.model_fields) | set(ParsedChatCompletionMessage.model_fields)
    empty = dict.fromkeys(fields - {"role", "content"}, nothing)
    body = {"model": "tiny", "messages": [QUESTION, ANSWER | empty, QUESTION], "max_tokens": 1}
    with shared.http() as http:
        response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


def test_every_parameter_of_the_official_client_is_known_here():
    client = openai.OpenAI(api_key="none")
    for ask, request in ((client.chat.completions, ChatCompletionRequest), (client.completions, CompletionRequest)):
        assert set(inspect.signature(ask.create).parameters) - TRANSPORT <= set(request.model_fields)


def refusal_of(server, path, body, **options):
    with server.http() as http:
        response = http.post(
            f"/v1/{path}", **({"json": body} if isinstance(body, dict) else {"content": body}), **options
        )
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


CALL = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("message", "param", "reason"),
    [
        (ANSWER | {"refusal": "I will not"}, "messages[1].refusal", "must be null or empty"),
        (ANSWER | {"tool_calls": CALL}, "messages[1].tool_calls", "must be null or empty"),
        (ANSWER | {"audio": {"id": "x"}}, "messages[1].audio", "must be null or empty"),
        (ANSWER | {"weight": 1}, "messages[1].weight", "Unrecognized request argument: messages[1].weight"),
        ({"role": "tool", "content": "x"}, "messages[1].role", "'system', 'developer', 'user' or 'assistant'"),
        ({"role": "assistant", "content": None}, "messages[1].content", "Give a string or a list of text parts"),
        ({"role": "assistant"}, "messages[1].content", "is required"),
        ({"role": "user", "content": [IMAGE]}, "messages[1].content[0].type", "no images"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]},
            "messages[1].content[1].type",
            "no images",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text", "is required"),
        ({"role": "user", "content": 5}, "messages[1].content", "Give a string or a list of text parts"),
        ("hello", "messages[1]", "valid dictionary"),
    ],
)
def test_a_refused_message_names_its_field_and_the_true_reason(shared, message, param, reason):
    body = {"model": "tiny", "messages": [QUESTION, message]}
    found, said = refusal_of(shared, "chat/completions", body)
    assert found == param
    assert said.startswith(param) or param in said
    assert reason in said
    assert "I will not" not in said


@pytest.mark.parametrize(
    ("field", "value", "param", "reason"),
    [
        ("stop", ["a"] * 5, "stop", "At most 4 are taken here, not 5"),
        ("stop", ["a", 3], "stop[1]", "valid string"),
        ("stop", ["a", ""], "stop[1]", "at least 1 character"),
        ("stop", "", "stop", "at least 1 character"),
        ("stop", {"a": 1}, "stop", "Give a string or a list of strings"),
        ("prompt", [5, -3], "prompt[1]", "greater than or equal to 0"),
        ("prompt", [[5], [6, -1]], "prompt[1][1]", "greater than or equal to 0"),
        ("prompt", ["a", 5], "prompt[1]", "valid string"),
        ("prompt", [5, "a"], "prompt[1]", "valid integer"),
        ("prompt", [1.5], "prompt[0]", "valid integer"),
        ("prompt", [[]], "prompt[0]", "at least 1 item"),
        ("prompt", [], "prompt", "at least 1 item"),
        ("prompt", {"a": 1}, "prompt", "Give a string, a list of token ids, or a list of either"),
        ("prompt", ["a"] * 129, "prompt", "At most 128 are taken here, not 129"),
        ("max_tokens", "5", "max_tokens", "valid integer"),
        ("logprobs", 1, "logprobs", "only released tokens may leave"),
        ("logprobs", "all", "logprobs", "only released tokens may leave"),
        ("stream_options", {"include_everything": True}, "stream_options.include_everything", "Unrecognized"),
    ],
)
def test_a_refused_field_is_named_with_the_true_reason(shared, field, value, param, reason):
    found, said = refusal_of(shared, "completions", {"model": "tiny", "prompt": "a", "stream": True, field: value})
    assert found == param
    assert param in said
    assert reason in said


@pytest.mark.parametrize("key", ["\\ud800", "x" * 100_000], ids=["lone surrogate", "long"])
@pytest.mark.parametrize("place", ['{"model": "tiny", "prompt": "a", "%s": 1}', '{"model": "tiny", "%s": 1}'])
def test_a_field_of_any_name_is_refused_in_few_words(shared, key, place):
    _, said = refusal_of(shared, "completions", (place % key).encode(), headers=JSON)
    assert len(said) < 300


GOOD = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (GOOD, {}, "needs the header Content-Type: application/json; it has none"),
        (GOOD, {"Content-Type": "text/plain"}, "needs the header Content-Type: application/json; it has another"),
        (gzip.compress(GOOD, mtime=0), {**JSON, "Content-Encoding": "gzip"}, "compressed (Content-Encoding)"),
        (gzip.compress(GOOD, mtime=0), {"Content-Encoding": "gzip"}, "compressed (Content-Encoding)"),
        (gzip.compress(GOOD, mtime=0), JSON, "not valid JSON"),
        (b"\xff\xfe\x00", JSON, "not valid JSON"),
        (b"{", JSON, "not valid JSON"),
        (b"[]", JSON, "must be a JSON object"),
        (b"null", JSON, "must be a JSON object"),
        (b"", JSON, "required"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(shared, body, headers, reason):
    param, said = refusal_of(shared, "completions", body, headers=headers)
    assert param is None
    assert reason in said


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "application/vnd.api+json", "Application/JSON"]
)
def test_json_by_its_other_names_is_read(shared, media_type):
    with shared.http() as http:
        assert http.post("/v1/completions", content=GOOD, headers={"Content-Type": media_type}).status_code == 200


def test_what_is_not_there_says_what_is(shared):
    with shared.http() as http:
        for path in ("/v1/embeddings", "/chat/completions", "/v1/responses"):
            missing = http.post(path, json={})
            assert missing.status_code == 404
            said = missing.json()["error"]["message"]
            for address in ("POST /v1/chat/completions", "POST /v1/completions", "GET /v1/models"):
                assert address in said
        wrong = http.get("/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["message"] == "This address takes POST requests only."
        model = http.get("/v1/models/large")
        assert model.status_code == 404
        assert "'tiny'" in model.json()["error"]["message"]
