"""Requests are refused before they cost anything, and what tokenising costs is paid by who asks for it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError
from server.waiting import eventually

from reticent.errors import InvalidValueError
from reticent.server.fair_queue import QueueFullError
from reticent.server.prompts import BYTES_PER_TOKEN
from reticent.server.schemas import ChatCompletionRequest, CompletionRequest
from reticent.server.settings import Limits
from reticent.server.tokenising import Tokenising

GOOD = {"model": "tiny", "prompt": "abc", "max_tokens": 1}


class Watched:
    """A tokenizer that counts the texts it is given and lets none through before its gate is open."""

    def __init__(self, server):
        self._tokenizer = server.service.prompts._tokenizer
        self.num_texts, self.gate = 0, threading.Event()
        self.gate.set()
        server.service.prompts._tokenizer = self

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, *args, **kwargs):
        self.num_texts += 1
        assert self.gate.wait(60)
        return self._tokenizer(*args, **kwargs)


def test_probes_and_key_checks_answer_while_the_tokeniser_is_busy(live):
    server = live()
    one, two = (server.key(name) for name in ("one", "two"))
    tokenizer = Watched(server)
    tokenizer.gate.clear()
    # More requests than the event loop's own pool has threads.
    with server.http(one) as http, ThreadPoolExecutor(40) as pool:
        pending = [pool.submit(http.post, "/v1/completions", json=GOOD) for _ in range(40)]
        eventually(lambda: server.service.tokenising.num_waiting == 39 or None)
        try:
            with server.http(two) as other:
                assert other.get("/readyz").status_code == 200
                server.service.keys._read_at = -float("inf")
                assert other.get("/v1/models").status_code == 200
        finally:
            tokenizer.gate.set()
        assert {answer.result().status_code for answer in pending} == {200}


def test_what_cannot_fit_is_refused_by_its_bytes_and_never_tokenised(live):
    server = live()
    tokenizer = Watched(server)
    most = (server.service.batcher._engine.context_length - 1) * BYTES_PER_TOKEN
    with server.http() as http:
        # Two bytes a character: bytes count, not characters.
        for text in ("a" * (most + 1), "\u00e9" * (most // 2 + 1), "z" * 900_000):
            asked = {"model": "tiny", "max_tokens": 1}
            messages = [{"role": "user", "content": text}]
            halves = [{"role": "user", "content": text[: len(text) // 2 + 1]}] * 2
            refused = [
                http.post("/v1/completions", json=asked | {"prompt": text}),
                http.post("/v1/completions", json=asked | {"prompt": [text]}),
                http.post("/v1/chat/completions", json=asked | {"messages": messages}),
                http.post("/v1/chat/completions", json=asked | {"messages": halves}),
            ]
            assert [response.status_code for response in refused] == [400] * 4
            assert {response.json()["error"]["code"] for response in refused} == {"context_length_exceeded"}
            assert all("bytes" in response.json()["error"]["message"] for response in refused)
        assert tokenizer.num_texts == 0
        assert http.post("/v1/completions", json=GOOD).status_code == 200
        assert tokenizer.num_texts > 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"n": 5}, "n"), ({"prompt": ["a"] * 5}, "prompt"), ({"n": 2, "prompt": ["a"] * 3}, "n"),
        ({"max_tokens": 31}, "max_tokens"), ({"max_tokens": 1 << 31}, "max_tokens"),
    ],
)  # fmt: skip
def test_requests_for_more_than_an_operator_allows_are_400_and_never_tokenised(live, body, field):
    server = live(max_answers=4, max_tokens=30)
    tokenizer = Watched(server)
    with server.http() as http:
        refused = http.post("/v1/completions", json=GOOD | body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
        longer = http.post("/v1/chat/completions", json=chat | {"max_completion_tokens": 31})
        assert longer.json()["error"]["param"] == "max_completion_tokens"
        assert tokenizer.num_texts == 0
        # An answer whose length nobody names stays within the limit.
        assert http.post("/v1/chat/completions", json=chat).json()["usage"]["completion_tokens"] <= 30
    assert server.ledger.curator.state.tokens_released <= 30


def test_defaults_protect():
    limits = Limits()
    assert limits.max_answers <= 16
    assert limits.default_max_tokens <= limits.max_tokens <= 1024
    for name in ("max_answers", "max_tokens", "max_concurrent"):
        with pytest.raises(InvalidValueError, match=name.replace("_", "-")):
            Limits(**{name: 0})


def test_refused_work_counts_in_the_rate(live):
    server = live()
    key = server.key("k", tokens_per_minute=60)
    too_long = "a" * server.service.batcher._engine.context_length
    tokenizer = Watched(server)
    with server.http(key) as http:
        answers = [http.post("/v1/completions", json=GOOD | {"prompt": too_long, "max_tokens": 20}) for _ in range(5)]
        num_texts = tokenizer.num_texts
        answers.append(http.post("/v1/completions", json=GOOD | {"prompt": too_long, "max_tokens": 20}))
    assert [answer.status_code for answer in answers[:3]] == [400] * 3
    assert [answer.status_code for answer in answers[4:]] == [429] * 2
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert tokenizer.num_texts == num_texts > 0


def test_keys_take_turns_at_the_tokeniser_and_their_lines_are_bounded():
    async def ask():
        tokenising, order, gate = Tokenising(max_waiting=5), [], threading.Event()

        def noting(name):
            order.append(name)
            return [1]

        first = asyncio.create_task(tokenising.run("a", lambda: gate.wait(60) and [0]))
        await asyncio.sleep(0)
        while tokenising.num_waiting:
            await asyncio.sleep(0.001)
        tasks = [asyncio.create_task(tokenising.run(key, lambda key=key: noting(key))) for key in "aaaaabb"]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await tokenising.run("a", lambda: noting("a"))
        gate.set()
        assert await first == [0]
        assert await asyncio.gather(*tasks) == [[1]] * 7
        tokenising.close()
        return order

    assert asyncio.run(ask()) == list("babaaaa")


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [
        (CompletionRequest, "prompt", [-1] * 9000), (CompletionRequest, "prompt", [[-1] * 100] * 90),
        (CompletionRequest, "prompt", ["a", *[1] * 100]), (ChatCompletionRequest, "messages", [{"role": "x"}] * 2000),
        (ChatCompletionRequest, "messages", [{"role": "user", "content": [{"type": "image"}] * 9000}]),
        (ChatCompletionRequest, "messages", [{"role": "user", "content": "", **{f"f{i}": 1 for i in range(9000)}}]),
    ],
)  # fmt: skip
def test_a_bodys_faults_are_not_all_looked_for(of, field, value):
    """Each fault costs more than its bytes, on the event loop."""
    with pytest.raises(ValidationError) as found:
        of.model_validate({"model": "tiny", field: value})
    assert found.value.error_count() <= 4
    with pytest.raises(ValidationError) as found:
        of.model_validate({"model": "tiny"} | {f"f{number}": 1 for number in range(9000)})
    assert found.value.error_count() <= 4
