"""A server of a corpus deployment: its cap, what it refuses, and what it shows to whom."""

import threading
from dataclasses import replace

import httpx
import numpy as np
import openai
import pytest
from server.conftest import corpus_constants
from server.engine_parts import SETTINGS, VOCABULARY, WORLDS, Arithmetic, Recorder, finish
from sqlalchemy import select

from reticent.decoding.aggregates import CorpusDecoding
from reticent.dp import bounds
from reticent.dp.accounting import units_to_rho
from reticent.dp.curator import CorpusCurator, CorpusState
from reticent.dp.release import Aggregate
from reticent.errors import InvalidValueError
from reticent.ledger.api_keys import Scope
from reticent.ledger.schema import releases
from reticent.randomness import PublicCoins, SeededNoise
from reticent.server.jobs import FinishReason, Job, TokenSource
from reticent.server.service import assemble
from reticent.server.settings import OnExhausted, ServerSettings

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 12}
CONSTANTS = corpus_constants(WORLDS)
CHARGE = CONSTANTS.charge_units


def charges_of(database):
    with database.transaction(write=False) as connection:
        return [int(row.charge_units, 16) for row in connection.execute(select(releases.c.charge_units))]


def test_32_clients_drive_a_deployment_to_its_cap_and_not_past_it(live_corpus):
    affordable = 150
    server = live_corpus(tokens=affordable, max_queue=100)
    client, lock = server.openai(), threading.Lock()
    usages, refusals = [], []

    def ask_until_refused(number):
        while True:
            try:
                answer = client.completions.create(model="tiny", prompt=f"abc {number}", max_tokens=12)
            except openai.RateLimitError as error:
                with lock:
                    refusals.append(error.code)
                return
            with lock:
                usages.append(answer.usage)

    threads = [threading.Thread(target=ask_until_refused, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert refusals == ["insufficient_quota"] * 32
    charge = corpus_constants(WORLDS).charge_units
    assert charges_of(server.ledger.database) == [charge] * affordable
    account = server.ledger.curator.account
    assert account.spent_units == affordable * charge <= account.cap_units < (affordable + 1) * charge
    assert sum(usage.completion_tokens for usage in usages) == affordable
    for usage in usages:
        assert usage.privacy["rho_charged"] == units_to_rho(usage.completion_tokens * charge)
    with server.http() as http:
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["budget_spent"]) == (503, True)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("seed", 7, "can never be repeated"),
        ("temperature", 0, "the noise"),
        ("top_p", 0.9, "cannot be honoured"),
        ("logprobs", 1, "only released tokens may leave"),
        ("best_of", 2, "scores"),
        ("logit_bias", {"5": 3}, "cannot be honoured"),
        ("frequency_penalty", 0.5, "cannot be honoured"),
    ],
)
def test_what_would_act_on_the_draw_or_show_it_is_refused_and_costs_nothing(live_corpus, field, value, reason):
    server = live_corpus(tokens=100)
    with server.http() as http:
        answer = http.post("/v1/completions", json=ASK | {field: value})
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], reason in answer.json()["error"]["message"]) == (field, True)
    assert server.ledger.curator.state.tokens_released == 0


def test_users_see_what_their_answers_cost_and_operators_the_account(live_corpus):
    server = live_corpus(tokens=1000, delta=1e-5)
    ward, operator = server.key("ward", total_tokens=500), server.key("operator", Scope.GENERATE, Scope.ADMIN)
    *_, last = server.openai(ward).completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    own, tokens = last.usage.privacy, last.usage.completion_tokens
    assert own["rho_charged"] == own["key"]["rho_charged"] == units_to_rho(tokens * CHARGE)
    assert (own["guarantee"], own["relation"], own["deployment"]) == ("corpus", "add-remove", None)
    assert own["key"]["tokens_left"] == 500 - tokens
    seen = server.openai(operator).completions.create(**ASK, temperature=0.7).usage
    tokens += seen.completion_tokens
    rho = units_to_rho(tokens * CHARGE)
    account = seen.privacy["deployment"]
    assert (account["rho_charged"], account["tokens_left"]) == (rho, 1000 - tokens)
    assert (account["epsilon"], account["delta"]) == (bounds.epsilon(rho, 1e-5), 1e-5)
    assert account["membership_success"] == bounds.membership_success(rho)
    assert (account["clip"], account["gain"], account["temperature"]) == (0.1, 2.0, 1.25)
    with server.http(operator) as http:
        summary = http.get("/dashboard/data").json()
        metrics = http.get("/metrics").text
    assert (summary["guarantee"], summary["rho_spent"], summary["tokens_left"]) == ("corpus", rho, 1000 - tokens)
    assert summary["rho_cap"] == server.ledger.curator.account.cap_rho
    assert summary["membership_at_cap"] == bounds.membership_success(summary["rho_cap"])
    assert summary["membership_in_blocks"] > 0.5
    assert f"reticent_spent_rho {rho!r}" in metrics
    assert "nats" not in metrics
    assert "dissent" not in metrics
    with server.http(ward) as http:
        page = http.get("/try/data").json()
        assert http.get("/dashboard/data").status_code == 403
    assert (page["guarantee"], page["deployment"], page["rho_cap"]) == ("corpus", None, summary["rho_cap"])
    assert page["key"]["rho_charged"] == own["rho_charged"]
    # What a restart reads from the ledger is what was shown before it.
    assert server.service.usage.spending_by_key()[ward.split("-")[1]].units == last.usage.completion_tokens * CHARGE


def test_once_the_cap_is_spent_the_public_model_goes_on_where_the_operator_says_so(live_corpus):
    server = live_corpus(tokens=5, on_exhausted=OnExhausted.PUBLIC)
    server.service.prompts.stop_tokens = frozenset()
    answer = server.openai().completions.create(**ASK)
    assert answer.usage.privacy["tokens_charged"] == 5
    assert answer.usage.completion_tokens == 12
    assert answer.usage.reticent["source"] == "private, then public"
    assert server.ledger.curator.state.tokens_released == 5


def test_a_server_is_not_assembled_with_settings_of_the_other_guarantee(live_corpus, parts):
    server = live_corpus()
    with pytest.raises(InvalidValueError, match="for the other guarantee"):
        assemble(ServerSettings("tiny", SETTINGS), "0" * 16, 0, parts.ensemble, parts.tokenizer, server.ledger,
                 server.ledger.database)  # fmt: skip


def test_nothing_that_clients_see_follows_from_the_corpus(live_corpus):
    """A run's identity is a hash over its corpus: with all units but one known, both could be tried."""
    server = live_corpus(tokens=100)
    with server.http() as http:
        answer = http.post("/v1/completions", json=ASK)
        seen = [
            answer.text,
            str(answer.headers),
            *(http.get(path).text for path in ("/v1/models", "/readyz", "/healthz")),
        ]
    assert answer.json()["system_fingerprint"].startswith("fp_")
    assert server.service.run_id
    assert not [text for text in seen if server.service.run_id[:12] in text]
    other = replace(server.service, run_id="f" * 64)
    assert other.fingerprint == server.service.fingerprint == answer.json()["system_fingerprint"]


def test_the_documented_interface_is_one_document_for_both_guarantees(live_corpus):
    with live_corpus().http() as http:
        schemas = http.get("/openapi.json").json()["components"]["schemas"]
    assert {"Privacy", "CorpusPrivacy", "RealisedWorldSummary", "CorpusSummary"} <= schemas.keys()


class MemoryStore:
    """Keeps the state in memory and remembers how many releases each commit made."""

    def __init__(self):
        self.batches, self.failures = [], 0

    def commit(self, state, records):
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is full")
        self.batches.append([(record.request, record.step, record.charge_units) for record in records])

    def reconcile(self, state):
        return state


def curator_of(tokens=None, store=None):
    cap = None if tokens is None else units_to_rho(CHARGE) * (tokens + 0.5)
    return CorpusCurator.for_experiments(CorpusState.initial(CONSTANTS, cap), store or MemoryStore(), SeededNoise(1))


def job_of(max_tokens=5, prompt=(1, 2), sink=None, temperature=1.25):
    sink = sink or Recorder()
    settings = CorpusDecoding(CONSTANTS, temperature)
    coins = PublicCoins.from_seed(0, 0)
    return Job("r", "k", list(prompt), settings, coins, max_tokens, frozenset(), sink, sink)


def test_answers_share_steps_and_each_token_is_charged_and_committed_before_it_leaves(started):
    store = MemoryStore()
    engine = Arithmetic()
    engine.gate.clear()
    batcher = started(engine, curator_of(store=store))
    jobs = [job_of() for _ in range(4)]
    batcher.submit(jobs)
    engine.gate.set()
    sinks = finish(jobs)
    assert [len(sink.tokens) for sink in sinks] == [5] * 4
    assert sum(map(len, store.batches)) == 20 > len(store.batches), "some steps held several answers"
    assert {charge for batch in store.batches for *_, charge in batch} == {CHARGE}
    assert all(sink.shown_units == sink.charged_units == 5 * CHARGE for sink in sinks)


def test_nothing_leaves_a_step_whose_charges_are_not_durable(started):
    store = MemoryStore()
    store.failures = 1
    batcher = started(Arithmetic(), curator_of(store=store))
    first, second = job_of(), job_of()
    batcher.submit([first])
    [sink] = finish([first])
    assert (sink.ending, sink.tokens, sink.charged_units) == (FinishReason.STORAGE, [], 0)
    batcher.submit([second])
    [sink] = finish([second])
    assert (sink.ending, len(sink.tokens)) == (FinishReason.LENGTH, 5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_a_world_that_is_not_finite_ends_no_answer_and_stops_no_step(started, poison):
    class Poisoned(Arithmetic):
        def world_logits(self, context, candidates_K):
            logits_MK = super().world_logits(context, candidates_K)
            logits_MK[context.length % WORLDS] = poison
            return logits_MK

    batcher = started(Poisoned(), curator_of())
    jobs = [job_of(max_tokens=9, prompt=(number + 1,)) for number in range(3)]
    batcher.submit(jobs)
    assert [(sink.ending, len(sink.tokens)) for sink in finish(jobs)] == [(FinishReason.LENGTH, 9)] * 3


def test_an_answer_ends_before_its_worlds_are_asked_once_the_cap_is_spent(started):
    asked = []

    class Watched(Arithmetic):
        def aggregates(self, contexts, settings):
            asked.append(len(contexts))
            return super().aggregates(contexts, settings)

    for public_fallback, ending in ((False, FinishReason.BUDGET), (True, FinishReason.LENGTH)):
        curator = curator_of(tokens=3)
        batcher = started(Watched(), curator, public_fallback=public_fallback)
        asked.clear()
        job = job_of(max_tokens=8)
        batcher.submit([job])
        [sink] = finish([job])
        private = sum(source is TokenSource.PRIVATE for source in sink.sources)
        assert (sink.ending, private, len(asked), curator.state.tokens_released) == (ending, 3, 3, 3)


def test_a_requests_temperature_divides_the_public_model_alone(started):
    """Worlds that say nothing, a public model that is sure, and a low temperature: the sure token, always."""

    class Sure(Arithmetic):
        def aggregates(self, contexts, settings):
            public = np.full(settings.num_candidates, -4.0)
            public[3] = -0.1
            candidates = np.arange(settings.num_candidates)
            return [Aggregate(candidates, public, np.zeros(len(candidates), np.int64)) for _ in contexts]

    batcher = started(Sure(), curator_of())
    cold, warm = job_of(200, temperature=0.05), job_of(200, temperature=50.0)
    batcher.submit([cold, warm])
    cold_sink, warm_sink = finish([cold, warm])
    assert set(cold_sink.tokens) == {3}
    assert len(set(warm_sink.tokens)) > 4
    assert cold_sink.charged_units == warm_sink.charged_units == 200 * CHARGE
    assert all(token < VOCABULARY for token in warm_sink.tokens)
    assert replace(cold.settings, temperature=1.25) == job_of().settings


def test_an_exhausted_deployment_refuses_with_a_status_before_any_work(live_corpus):
    server = live_corpus(tokens=1)
    with server.http() as http:
        http.post("/v1/completions", json=ASK | {"max_tokens": 1})
        refused: httpx.Response = http.post("/v1/completions", json=ASK)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
