"""A server as a target: what is read from its answers, what is retried, and what is said when it cannot be scored."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import numpy as np
import pytest

from reticent.auditing.canaries.extraction import ExtractionTarget
from reticent.auditing.inputs.cache import SignalCache, cached_signals
from reticent.auditing.targets.continuations import Continuer, RemoteExtractor
from reticent.auditing.targets.endpoint import RemoteScorer
from reticent.auditing.targets.endpoint_client import EndpointClient, EndpointSettings, retrying_client
from reticent.auditing.targets.http_retries import RetryingClient
from reticent.errors import EndpointError
from reticent.text.corpus import text_hash
from reticent.text.template import TextTemplate

URL = "http://localhost:9/v1"
SETTINGS = EndpointSettings(URL, model="tiny", attempts=3, concurrency=1)


class Server:
    """A completions endpoint with one token a word; the n-th word of a prompt has log-probability -n/4 - shift."""

    def __init__(self, shift=0.0, begins=False, minimum=0):
        self.shift, self.begins, self.minimum = shift, begins, minimum
        self.prompts = []
        self.faults = {}
        self.everything_fails_with = None

    def answer(self, body):
        words = body["prompt"].split(" ")
        values = [-0.25 * n - self.shift for n in range(1, len(words) + 1)]
        if not self.begins:
            values[0] = None
        tops = [None if v is None else {"x": v if n % 2 else v / 2} for n, v in enumerate(values)]
        generated = body["max_tokens"]
        return {
            "choices": [
                {
                    "text": body["prompt"] + " more" * generated,
                    "logprobs": {
                        "token_logprobs": values + [-0.01] * generated,
                        "top_logprobs": tops + [{"more": -0.01}] * generated,
                    },
                }
            ],
            "usage": {"prompt_tokens": len(words)},
        }

    def __call__(self, request):
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        body = json.loads(request.content)
        self.prompts.append(body["prompt"])
        fault = self.everything_fails_with or next(iter(self.faults.get(body["prompt"], [])), None)
        if fault is not None:
            if not self.everything_fails_with:
                self.faults[body["prompt"]].pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        if body["max_tokens"] < self.minimum:
            return httpx.Response(400, json={"error": "max_tokens"})
        return httpx.Response(200, json=self.answer(body))


def client_for(server, waits=None, settings=SETTINGS):
    client = httpx.Client(transport=httpx.MockTransport(server))
    waits = [] if waits is None else waits
    return EndpointClient(settings, RetryingClient(client, settings.attempts, waits.append))


def scorer_for(server, template=None, waits=None, settings=SETTINGS):
    return RemoteScorer(client_for(server, waits, settings), template or TextTemplate())


def test_each_token_after_the_first_has_its_log_probability_and_whether_it_was_the_most_likely():
    (signals,) = scorer_for(Server()).score(["one two three four"])
    np.testing.assert_array_equal(signals.logp, [-0.5, -0.75, -1.0])
    assert signals.rank.tolist() == [0, 1, 0]
    assert np.isnan(signals.mu).all()
    assert np.isnan(signals.sigma2).all()


def test_a_server_that_begins_the_text_scores_its_first_token():
    scorer = scorer_for(Server(begins=True))
    assert scorer.scores_first_token
    assert scorer.score(["one two"])[0].num_tokens == 2
    assert not scorer_for(Server()).scores_first_token


def test_a_server_that_must_generate_is_asked_for_one_token_that_is_not_scored():
    scorer = scorer_for(Server(minimum=1))
    (signals,) = scorer.score(["one two three"])
    np.testing.assert_array_equal(signals.logp, [-0.5, -0.75])


def test_the_template_surrounds_the_text_and_cuts_it():
    server = Server()
    scorer = scorer_for(server, TextTemplate(text="Note: {text}", max_tokens=3))
    (signals,) = scorer.score(["one two three"])
    assert server.prompts[-1] == "Note: one two three"
    assert signals.num_tokens == 2


def test_texts_of_no_or_one_token_have_no_signals_and_no_failure():
    scorer = scorer_for(Server())
    assert scorer.score(["one"]) == [None]
    assert scorer.failures == {}


def test_busy_and_slow_answers_are_retried_after_the_time_asked_for():
    server, waits = Server(), []
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30))
    server.faults["one two"] = [httpx.Response(429, headers={"Retry-After": "7"}), httpx.ReadTimeout("slow")]
    server.faults["three four"] = [httpx.Response(503, headers={"Retry-After": soon}), httpx.Response(500)]
    scorer = scorer_for(server, waits=waits)
    assert all(scorer.score(["one two", "three four"]))
    assert scorer.failures == {}
    assert waits[:2] == [7.0, 2.0]
    assert 20 < waits[2] <= 30
    assert waits[3] == 2.0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(httpx.Response(429), "status 429"), (httpx.ReadTimeout("slow"), "no answer in time")],
)
def test_a_server_that_goes_away_leaves_a_partial_result_that_says_so(fault, reason):
    server = Server()
    scorer = scorer_for(server)
    assert scorer.score(["one two"])[0] is not None
    server.everything_fails_with = fault
    sent = len(server.prompts)
    assert scorer.score(["three four", "five six"]) == [None, None]
    assert len(server.prompts) - sent == SETTINGS.attempts, "nothing more is sent once the server counts as gone"
    assert f"{reason} after 3 attempts" in scorer.failures[text_hash("three four")]
    assert "not sent" in scorer.failures[text_hash("five six")]
    assert reason in scorer.incomplete


def test_a_text_the_server_refuses_is_missing_and_the_next_one_is_scored():
    server = Server()
    scorer = scorer_for(server)
    server.faults["too long"] = [httpx.Response(400)]
    first, second = scorer.score(["too long", "one two"])
    assert first is None
    assert second is not None
    assert "status 400" in scorer.failures[text_hash("too long")]
    assert scorer.incomplete is None


@pytest.mark.parametrize(
    "change",
    [
        lambda choice: choice.update(logprobs=None),
        lambda choice: choice.pop("logprobs"),
        lambda choice: choice.update(text=" more"),
        lambda choice: choice["logprobs"].update(token_logprobs=[]),
        lambda choice: choice["logprobs"]["token_logprobs"].__setitem__(3, None),
    ],
    ids=["null", "absent", "no echo", "empty", "a hole"],
)
def test_a_server_without_prompt_log_probabilities_is_refused(change):
    class Bare(Server):
        def answer(self, body):
            content = super().answer(body)
            change(content["choices"][0])
            return content

    with pytest.raises(EndpointError, match="returns no log-probabilities of the prompt"):
        scorer_for(Bare())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(401), "refuses access .*--api-key-env"),
        (httpx.Response(404), "check the address and the model name 'tiny'"),
        (httpx.Response(400), "refused one short sentence with status 400"),
        (httpx.Response(503), "status 503 after 3 attempts; nothing was scored"),
        (httpx.ConnectError("down"), "no connection"),
        (httpx.Response(200, text="<html>"), "no log-probabilities"),
    ],
)
def test_a_server_that_cannot_be_audited_is_refused_at_once(answer, words):
    server = Server()
    server.everything_fails_with = answer
    with pytest.raises(EndpointError, match=words):
        scorer_for(server)


def test_log_probabilities_that_are_none_are_refused():
    with pytest.raises(EndpointError, match="positive or not finite"):
        scorer_for(Server(shift=-100.0))


def test_the_key_comes_from_the_environment_and_stays_out_of_messages(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "very-secret")
    seen = []

    def serve(request):
        seen.append(request.headers.get("Authorization"))
        return httpx.Response(403)

    settings = EndpointSettings(URL, model="tiny", api_key_variable="SOME_KEY", attempts=1)
    with pytest.raises(EndpointError) as caught:
        RemoteScorer(EndpointClient(settings, retrying_client(settings, httpx.MockTransport(serve))), TextTemplate())
    assert seen == ["Bearer very-secret"]
    assert "very-secret" not in str(caught.value)


def test_the_only_model_of_a_server_is_found_and_several_are_listed():
    assert client_for(Server(), settings=EndpointSettings(URL, attempts=1)).model == "tiny"

    def several(request):
        return httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]})

    with pytest.raises(EndpointError, match="these models: a, b; name the one"):
        client_for(several, settings=EndpointSettings(URL, attempts=1))


@pytest.mark.parametrize("url", ["http://h", "http://h/", "http://h/v1", "http://h/v1/completions"])
def test_every_form_of_the_address_reaches_the_same_endpoint(url):
    assert client_for(Server(), settings=EndpointSettings(url, "tiny")).url == "http://h/v1/completions"


def test_other_weights_behind_the_same_address_have_another_fingerprint():
    same = scorer_for(Server()).fingerprint
    assert scorer_for(Server()).fingerprint == same
    assert scorer_for(Server(shift=1.0)).fingerprint != same
    assert scorer_for(Server(), TextTemplate(max_tokens=8)).fingerprint != same


def test_secrets_are_counted_in_continuations_of_what_the_template_puts_before_the_text():
    bodies = []

    def serve(request):
        bodies.append(json.loads(request.content))
        texts = (" 42 and more", " 24", "\n42")[: bodies[-1]["n"]]
        return httpx.Response(200, json={"choices": [{"text": text} for text in texts]})

    extractor = RemoteExtractor(Continuer(client_for(serve)), TextTemplate(text="Note: {text} END"))
    target = ExtractionTarget("the code is", "42")
    assert extractor.count_emitted([target], 3, seed=1) == [2]
    assert bodies[-1]["prompt"] == "Note: the code is"
    assert (bodies[-1]["max_tokens"], bodies[-1]["n"], bodies[-1]["temperature"]) == (3, 3, 1.0)
    assert extractor.count_emitted([target], None, seed=1) == [1]
    assert (bodies[-1]["n"], bodies[-1]["temperature"]) == (1, 0.0)


def test_a_server_that_is_gone_counts_no_secrets():
    server = Server()
    server.everything_fails_with = httpx.Response(503)
    extractor = RemoteExtractor(Continuer(client_for(server)), TextTemplate())
    assert extractor.count_emitted([ExtractionTarget("the code is", "42")], None, seed=1) == [None]


def test_a_resumed_audit_asks_again_only_for_texts_that_failed(tmp_path):
    server, cache = Server(), SignalCache(tmp_path)
    scorer = scorer_for(server)
    server.faults["three four"] = [httpx.Response(400)]
    texts = ["one two", "three four", "five"]
    first = cached_signals(scorer, texts, cache)
    assert [first[text_hash(text)] is None for text in texts] == [False, True, True]
    again = scorer_for(server)
    server.prompts.clear()
    second = cached_signals(again, texts, cache)
    assert sorted(server.prompts, key=len, reverse=True) == ["three four", "five"]
    np.testing.assert_array_equal(second[text_hash("three four")].logp, [-0.5])
    np.testing.assert_array_equal(second[text_hash("one two")].logp, [-0.5])


def test_a_rate_that_is_used_up_is_waited_for_longer_than_a_failure_but_not_for_ever():
    server, waits = Server(), []
    scorer = scorer_for(server, waits=waits)
    server.faults["one two"] = [httpx.Response(429, headers={"Retry-After": "9"}) for _ in range(20)]
    assert scorer.score(["one two"])[0] is not None
    assert waits == [9.0] * 20
    server.everything_fails_with = httpx.Response(429, headers={"Retry-After": "9"})
    assert scorer.score(["three four"]) == [None]
    assert len(waits) == 20 + 59
    assert "status 429 after 60 attempts" in scorer.failures[text_hash("three four")]
