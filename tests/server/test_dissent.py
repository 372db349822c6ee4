"""A server that charges only dissenting tokens: its cap, what a crash leaves, and what it shows to whom."""

import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import openai
import pytest
from pac_oracles import MemoryStore
from server.conftest import STEP_BUDGET
from server.engine_parts import NATS, SETTINGS, WORLDS, Arithmetic, finish, make_job
from server.test_server_crashes import stream_until_broken
from sqlalchemy import select

from reticent.api.deployments import run_id
from reticent.cli import main as cli
from reticent.ledger.api_keys import Scope
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.reader import LedgerReader
from reticent.ledger.schema import releases
from reticent.pac.accounting import charge_units, units_to_nats
from reticent.pac.charging import Charging, ChargingRule
from reticent.pac.curator import Ballot, Curator, CuratorState
from reticent.randomness import SeededNoise
from reticent.server.coarse import RENEWED_EVERY_TOKENS, CoarseAccount
from reticent.server.jobs import FinishReason, TokenSource

DISSENT = ChargingRule.DISSENT
UNIT = charge_units(STEP_BUDGET)


def rows_of(database):
    """The request, the distinct votes and the charge of every release."""
    with database.transaction(write=False) as connection:
        columns = (releases.c.request, releases.c.num_active, releases.c.charge_units)
        return [
            (row.request, row.num_active, int(row.charge_units, 16)) for row in connection.execute(select(*columns))
        ]


def require_each_dissent_charged(rows):
    assert {charge for _, num_active, charge in rows if num_active > 1} == {UNIT}
    assert {charge for _, num_active, charge in rows if num_active == 1} <= {0}


def test_32_clients_drive_a_deployment_to_its_cap_and_not_past_it(live):
    affordable = 150
    server = live(total_budget=(affordable + 0.5) * STEP_BUDGET, charging_rule=DISSENT, max_queue=100)
    client, lock = server.openai(), threading.Lock()
    usages, refusals = [], []

    def ask_until_refused(number):
        for prompt in (f"{word} {number}" for word in "abcdefghijklmnopqrstuvwxyz" * 20):
            try:
                answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=12)
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
    rows = rows_of(server.ledger.database)
    require_each_dissent_charged(rows)
    assert sum(num_active > 1 for _, num_active, _ in rows) == affordable
    account = server.ledger.curator.account
    assert account.spent_units == sum(charge for *_, charge in rows) == affordable * UNIT <= account.cap_units
    assert len(rows) > affordable, "tokens on which the worlds agree are free"
    # Whoever asked was shown what the tokens could have cost, however many of them dissented.
    assert sum(usage.completion_tokens for usage in usages) == len(rows)
    for usage in usages:
        assert usage.privacy["nats_charged"] == units_to_nats(usage.completion_tokens * UNIT)
    with server.http() as http:
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["budget_spent"]) == (503, True)


def test_kill_at_random_moments_leaves_no_uncharged_dissenting_token(deployment, serve):
    """One token is at most one character here, so an answer of n characters must have at least n rows."""
    run, environment = deployment
    received, lock = {}, threading.Lock()
    database = Database.of_run(run, None)
    for round_number in range(int(os.environ.get("RETICENT_CRASH_ROUNDS", 4))):
        server = serve("--charging", "dissent") if round_number != 1 else serve()
        threads = [threading.Thread(target=stream_until_broken, args=(server.url, received, lock)) for _ in range(4)]
        for thread in threads:
            thread.start()
        shown_before, deadline = sum(received.values()), time.monotonic() + 60
        while sum(received.values()) == shown_before:
            assert time.monotonic() < deadline, "no token came"
            time.sleep(0.01)
        time.sleep(random.Random(round_number).uniform(0.0, 0.6))
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        for thread in threads:
            thread.join(30)
        rows = rows_of(database)
        require_each_dissent_charged(rows)
        with LedgerReader(run, run_id(run), Keyring.of_user(environment), database) as reader:
            assert reader.verify().units == reader.state.spent_units == sum(charge for *_, charge in rows)
            assert reader.state.charging_rule is DISSENT
            assert reader.state.dissenting_steps == sum(num_active > 1 for _, num_active, _ in rows) > 0
        charged = Counter(request.rsplit("-", 1)[0] for request, *_ in rows)
        assert all(charged[answer] >= characters for answer, characters in received.items())


def test_a_deployment_keeps_its_rule_through_a_restart_and_refuses_another(deployment, serve, monkeypatch, capsys):
    run, environment = deployment
    serve("--charging", "dissent").end(signal.SIGTERM)
    monkeypatch.setenv("XDG_CONFIG_HOME", environment["XDG_CONFIG_HOME"])
    assert cli.main(["serve", str(run), "--port", "0", "--charging", "fixed"]) == 2
    error = capsys.readouterr().err
    assert "charges by the rule dissent" in error
    assert "Leave the option out" in error


def test_keys_and_streams_show_worst_cases_and_operators_a_coarse_total(live):
    server = live(total_budget=5000 * STEP_BUDGET, charging_rule=DISSENT)
    ward, operator = server.key("ward", total_tokens=500), server.key("operator", Scope.GENERATE, Scope.ADMIN)
    ask = {"model": "tiny", "prompt": "abc", "max_tokens": 40}
    *_, last = server.openai(ward).completions.create(**ask, stream=True, stream_options={"include_usage": True})
    tokens = last.usage.completion_tokens
    assert last.usage.privacy["nats_charged"] == last.usage.privacy["key"]["nats_charged"] == tokens * STEP_BUDGET
    assert last.usage.privacy["deployment"] is None
    seen = server.openai(operator).completions.create(**ask).usage
    tokens += seen.completion_tokens
    account = server.ledger.curator.account
    assert account.spent_nats < tokens * STEP_BUDGET, "some of them were free"
    assert seen.privacy["deployment"]["nats_charged"] == tokens * STEP_BUDGET
    with server.http(operator) as http:
        summary = http.get("/dashboard/data").json()
        assert f"reticent_spent_nats {tokens * STEP_BUDGET!r}" in http.get("/metrics").text
    assert (summary["charging"], summary["budget_spent"]) == ("dissent", False)
    assert (summary["nats_spent"], summary["tokens_left"]) == (tokens * STEP_BUDGET, 5000 - tokens)
    with server.http(ward) as http:
        page = http.get("/try/data").json()
    # What a restart reads from the ledger is what was shown before it.
    spending = server.service.usage.spending_by_key()
    assert spending[ward.split("-")[1]].units == last.usage.completion_tokens * UNIT
    assert page["key"]["nats_charged"] == last.usage.completion_tokens * STEP_BUDGET


AGREE, DIFFER = np.array([7, 7, 7, 7]), np.array([7, 7, 7, 8])


def curator_of(rule, total_budget=None):
    initial = CuratorState.initial(4, SeededNoise(0), total_budget, rule)
    return Curator.for_experiments(initial, MemoryStore(), SeededNoise(1))


def release(curator, rows):
    charging = Charging(STEP_BUDGET, curator.charging_rule)
    curator.release_many([Ballot(row, charging, "r", step) for step, row in enumerate(rows)])


@pytest.mark.parametrize("cap", [None, 700 * STEP_BUDGET])
def test_the_coarse_account_never_shows_less_than_was_spent_nor_whether_one_token_dissented(cap):
    generator = np.random.default_rng(3)
    twins = [curator_of(DISSENT, cap), curator_of(DISSENT, cap)]
    shown = [CoarseAccount(curator, Charging(STEP_BUDGET, DISSENT)) for curator in twins]
    for _ in range(400):
        rows = [DIFFER if differs else AGREE for differs in generator.random(5) < 0.3]
        release(twins[0], rows)
        release(twins[1], [AGREE if row is DIFFER else DIFFER for row in rows] if cap is None else rows)
        for curator, coarse in zip(twins, shown, strict=True):
            spent, visible = curator.account.spent_units, coarse.account.spent_units
            assert spent <= visible <= spent + RENEWED_EVERY_TOKENS * UNIT
            assert cap is None or coarse.account.cap_units == curator.account.cap_units
        if twins[0].state.tokens_released < RENEWED_EVERY_TOKENS:
            assert shown[0].account == shown[1].account, "the same, whichever tokens dissented"
    assert cap is not None or shown[0].account != shown[1].account


def test_two_renewals_of_the_coarse_account_are_never_close():
    curator = curator_of(DISSENT)
    coarse = CoarseAccount(curator, Charging(STEP_BUDGET, DISSENT))
    renewed_at = [0]
    for number in range(1, 3 * RENEWED_EVERY_TOKENS):
        release(curator, [AGREE])
        # A reader who looks at moments of their choice.
        if (
            number in (1500, 1999, 2000, 2001, 2500, 2999)
            and coarse.account.spent_units < (number - renewed_at[-1]) * UNIT
        ):
            renewed_at.append(number)
    assert renewed_at == [0, 1500, 2500]


def test_the_fixed_rule_shows_the_account_itself():
    curator = curator_of(ChargingRule.FIXED, 100 * STEP_BUDGET)
    coarse = CoarseAccount(curator, Charging(STEP_BUDGET, ChargingRule.FIXED))
    for _ in range(120):
        release(curator, [AGREE, DIFFER])
        assert coarse.account == curator.account


def test_an_answer_ends_before_the_votes_once_the_cap_is_spent_and_the_public_model_goes_on(started):
    """So neither the end nor the change of models tells whether the worlds differ there."""
    cast = []

    class Watched(Arithmetic):
        def world_logits(self, context, candidates):
            cast.append(1)
            return super().world_logits(context, candidates)

    for public_fallback, ending in ((False, FinishReason.BUDGET), (True, FinishReason.LENGTH)):
        curator = Curator.for_experiments(
            CuratorState.initial(WORLDS, SeededNoise(0), 1.5 * NATS, DISSENT), MemoryStore(), SeededNoise(1)
        )
        job = make_job(max_tokens=40)
        job.settings = replace(SETTINGS, charging_rule=DISSENT)
        batcher = started(Watched(), curator, public_fallback=public_fallback)
        cast.clear()
        batcher.submit([job])
        [sink] = finish([job])
        private = [source for source in sink.sources if source is TokenSource.PRIVATE]
        assert (sink.ending, curator.state.dissenting_steps) == (ending, 1)
        assert len(cast) == len(private) == curator.state.tokens_released
        assert sink.sources[: len(private)] == private
