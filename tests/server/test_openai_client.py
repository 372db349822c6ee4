"""The official client against a running server: what it sends is understood, what comes back it understands."""

import json

import openai
import pytest
from sqlalchemy import select

from reticent.ledger.schema import releases
from reticent.pac.accounting import charge_units, units_to_nats
from reticent.pac.wording import HALF_QUESTION, NOT_BOUNDED, WORLD_QUESTION

NATS = 2.0**-32


@pytest.fixture
def server(database_url, live):
    return live(total_budget=2000 * NATS, database_url=database_url)


@pytest.fixture
def client(server):
    return server.openai()


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("large")
    assert caught.value.code == "model_not_found"


def test_documented_bounds_say_their_questions_and_what_is_not_bounded(server):
    with server.http() as http:
        fields = http.get("/openapi.json").json()["components"]["schemas"]["DeploymentPrivacy"]["properties"]
    assert all(part in fields["half_bound"]["description"] for part in (HALF_QUESTION, NOT_BOUNDED))
    assert WORLD_QUESTION in fields["world_bound"]["description"]


def test_completion_and_what_it_cost(client, server):
    answer = client.completions.create(model="tiny", prompt="abcd", max_tokens=5, temperature=0)
    [choice] = answer.choices
    assert answer.usage.prompt_tokens == 4
    assert 1 <= answer.usage.completion_tokens <= 5
    assert choice.finish_reason == ("length" if answer.usage.completion_tokens == 5 else "stop")
    privacy = answer.usage.privacy
    spent = answer.usage.completion_tokens * charge_units(NATS)
    assert privacy["tokens_charged"] == answer.usage.completion_tokens == server.ledger.curator.state.tokens_released
    assert privacy["nats_charged"] == units_to_nats(spent)
    # Without keys whoever asks is the operator.
    assert privacy["key"] is None
    deployment = privacy["deployment"]
    assert deployment["tokens_charged"] == answer.usage.completion_tokens
    assert deployment["nats_charged"] == units_to_nats(spent)
    assert deployment["nats_left"] == pytest.approx(2000 * NATS - units_to_nats(spent))
    assert deployment["half_bound"] == server.ledger.curator.half_success > 0.5
    assert deployment["world_bound"] == server.ledger.curator.world_success > 0.25
    assert choice.reticent == {"source": "private", "ended_by": None}


def test_several_prompts_choices_and_token_ids(client):
    answer = client.completions.create(model="tiny", prompt=["ab", "cd"], n=2, max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 4
    by_ids = client.completions.create(model="tiny", prompt=[97, 98], max_tokens=1)
    assert by_ids.usage.prompt_tokens == 2
    nested = client.completions.create(model="tiny", prompt=[[97], [98, 99]], max_tokens=1)
    assert (len(nested.choices), nested.usage.prompt_tokens) == (2, 3)
    # The tiny tokenizer puts no beginning-of-text token before a text.
    with pytest.raises(openai.BadRequestError, match="no token to start from") as caught:
        client.completions.create(model="tiny", prompt="", max_tokens=1)
    assert caught.value.param == "prompt"
    default = client.completions.create(model="tiny", prompt="ab")
    assert default.usage.completion_tokens <= 16


def test_stream_joins_to_whole_texts_and_ends_with_usage(client):
    stream = client.completions.create(
        model="tiny", prompt="abc", max_tokens=12, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage.privacy["tokens_charged"] == last.usage.completion_tokens <= 24
    assert all(chunk.usage is None for chunk in chunks)
    for index in (0, 1):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert [choice.finish_reason is None for choice in mine] == [True] * (len(mine) - 1) + [False]


def test_raw_stream_is_events_without_usage_unless_asked(server):
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 3, "stream": True}
    with server.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert all("usage" not in event for event in events)


def test_chat(client):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=4)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert answer.usage.prompt_tokens == len("s:s\nu:hello\na:")
    *chunks, last = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert last.usage.completion_tokens <= 4


def test_chat_without_a_length_gets_the_servers_and_stays_in_the_window(live):
    client = live(default_max_tokens=6).openai()
    answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
    assert 1 <= answer.usage.completion_tokens <= 6
    long = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 86}])
    assert 1 <= long.usage.completion_tokens <= 96 - 91


def test_chat_template_that_refuses_or_is_missing(live):
    client = live(chat_template=None).openai()
    with pytest.raises(openai.BadRequestError, match="no chat template") as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "no_chat_template"


def test_a_template_that_refuses_is_the_clients_error(client):
    with pytest.raises(openai.BadRequestError, match="no developers here"):
        client.chat.completions.create(model="tiny", messages=[{"role": "developer", "content": "x"}])


@pytest.mark.parametrize("stream", [False, True])
def test_seed_is_refused_where_the_operator_refuses_it(live, stream):
    server = live(refuse_seeds=True)
    client = server.openai()
    conversation = [{"role": "user", "content": "abc"}]
    for seed in (0, 7):
        for ask, asked in (
            (client.completions, {"prompt": "abc"}),
            (client.chat.completions, {"messages": conversation}),
        ):
            with pytest.raises(openai.BadRequestError, match="seed is refused") as caught:
                ask.create(model="tiny", **asked, max_tokens=1, seed=seed, stream=stream)
            assert (caught.value.param, caught.value.code) == ("seed", "seed_refused")
    assert server.ledger.curator.state.tokens_released == 0
    answer = client.completions.create(model="tiny", prompt="abc", max_tokens=1, seed=None)
    assert answer.usage.completion_tokens == 1


def test_seed_fixes_the_coins_and_nothing_private(client, server):
    for seed in (7, 7, -7):
        client.completions.create(model="tiny", prompt="abc", max_tokens=1, temperature=1, seed=seed)
    client.completions.create(model="tiny", prompt="abc", max_tokens=1, temperature=0, seed=7)
    with server.ledger.database.engine(write=False).begin() as connection:
        keys = [row.coin_key for row in connection.execute(select(releases).order_by(releases.c.number))]
    assert keys[0] == keys[1] != keys[2]
    assert keys[3] is None


def test_stop_strings_are_not_shown(client):
    stops = ["e", "th", "er ", "nd"]
    for _ in range(3):
        answer = client.completions.create(model="tiny", prompt="zz", max_tokens=40, stop=stops, n=4)
        for choice in answer.choices:
            assert not any(stop in choice.text for stop in stops)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", 1), ("logprobs", 0), ("echo", True), ("logit_bias", {"5": 1}), ("best_of", 2), ("top_p", 0.9),
        ("presence_penalty", 0.5), ("frequency_penalty", -1), ("suffix", "x"), ("n", 0), ("n", 129),
        ("max_tokens", 0), ("max_tokens", 97), ("temperature", 3), ("stop", ["a"] * 5), ("stop", ""), ("seed", 2**70),
        ("prompt", []), ("prompt", [999]), ("prompt", "x" * 96), ("stream_options", {}),
    ],
)  # fmt: skip
def test_what_leaks_or_cannot_be_honoured_is_refused_with_the_field(shared, field, value):
    before = shared.ledger.curator.state.tokens_released
    arguments = {"model": "tiny", "prompt": "abc", field: value}
    with pytest.raises(openai.BadRequestError) as caught:
        shared.openai().completions.create(**arguments)
    assert field in caught.value.message or caught.value.param in (field, "max_tokens")
    assert caught.value.type == "invalid_request_error"
    assert shared.ledger.curator.state.tokens_released == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", True), ("top_logprobs", 2), ("tools", [{}]), ("response_format", {"type": "json_object"}),
        ("modalities", ["audio"]), ("messages", []), ("max_completion_tokens", 0), ("reasoning_effort", "high"),
    ],
)  # fmt: skip
def test_chat_refusals(shared, field, value):
    arguments = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], field: value}
    with pytest.raises(openai.BadRequestError) as caught:
        shared.openai().chat.completions.create(**arguments)
    assert field in caught.value.message


def test_neutral_values_and_books_are_accepted(client):
    answer = client.completions.create(
        model="tiny", prompt="abc", max_tokens=1, top_p=1, presence_penalty=0, frequency_penalty=0.0, best_of=1,
        echo=False, logit_bias={}, user="someone", extra_body={"metadata": {"a": 1}, "logprobs": None},
    )  # fmt: skip
    assert answer.usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError, match="Unrecognized request argument: top_k"):
        client.completions.create(model="tiny", prompt="abc", extra_body={"top_k": 3})
