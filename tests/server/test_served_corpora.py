"""`reticent serve` on a run that carries the corpus guarantee: kill -9, restart, options, and the other guarantee."""

import os
import random
import signal
import threading
import time
from collections import Counter

import httpx
import pytest
from server.test_corpus_server import charges_of
from server.test_server_crashes import stream_until_broken

from reticent.api.deployments import run_id
from reticent.cli import main as cli
from reticent.dp.relations import Relation
from reticent.errors import InvalidValueError
from reticent.guarantees import Guarantee
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.reader import LedgerReader
from reticent.ledger.served_corpora import ServedCorpus


def test_kill_at_random_moments_leaves_no_uncharged_token(corpus_deployment, serve_corpus):
    """One token is at most one character here, so an answer of n characters must have at least n rows."""
    run, environment = corpus_deployment
    received, lock = {}, threading.Lock()
    database = Database.of_run(run, None)
    for round_number in range(int(os.environ.get("RETICENT_CRASH_ROUNDS", 4))):
        server = serve_corpus("--candidates", "8", "--gain", "3") if not round_number else serve_corpus()
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
        with LedgerReader(run, run_id(run), Keyring.of_user(environment), database) as reader:
            state, rows = reader.corpus_state, list(reader.releases())
            assert reader.verify().units == state.spent_units == len(rows) * state.settings.charge_units
        assert charges_of(database) == [state.settings.charge_units] * len(rows)
        assert (state.settings.gain, state.settings.num_candidates) == (3.0, 8)
        assert (state.settings.num_worlds, state.settings.relation) == (12, Relation.ADD_REMOVE)
        charged = Counter(str(row["request"]).rsplit("-", 1)[0] for row in rows)
        assert all(charged[answer] >= characters for answer, characters in received.items())


def test_a_server_says_its_guarantee_stops_at_its_cap_and_starts_again_with_what_is_left(serve_corpus):
    server = serve_corpus("--candidates", "8", "--total-rho", "0.05", "--delta", "1e-4")
    with httpx.Client(base_url=server.url, timeout=60) as http:
        answer = http.post("/v1/completions", json={"model": "run", "prompt": "abc", "max_tokens": 3}).json()
        tokens, first = answer["usage"]["completion_tokens"], http.get("/dashboard/data").json()
    assert (first["guarantee"], first["delta"], first["tokens_released"]) == ("corpus", 1e-4, tokens)
    assert answer["usage"]["privacy"]["deployment"]["tokens_left"] == first["tokens_left"]
    assert first["rho_cap"] == pytest.approx(0.05)
    assert any("hides whether a privacy unit is in the corpus at all" in line for line in server.errors)
    assert any("clip 0.5, gain 2, temperature 1 and 8 candidates are chosen now and stay" in x for x in server.errors)
    assert not any("NO CAP" in line for line in server.errors)
    assert server.end(signal.SIGTERM) == 0
    server = serve_corpus()
    with httpx.Client(base_url=server.url, timeout=60) as http:
        second = http.get("/dashboard/data").json()
    assert (second["tokens_left"], second["rho_spent"]) == (first["tokens_left"], first["rho_spent"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--step-budget", "2^-32"], "--step-budget belongs to the other"),
        (["--total-budget", "1"], "--total-budget belongs to the other"),
        (["--charging", "fixed"], "--charging belongs to the other"),
        (["--release", "mixture"], "--release belongs to the other"),
        (["--temperature-default", "0.7"], "--temperature-default belongs to the other"),
        (["--decoder", "greedy"], "--decoder greedy is refused"),
        (["--temperature", "0"], "temperature"),
        (["--gain", "0"], "gain"),
        (["--gain", "nan"], "gain"),
        (["--clip", "1e-9"], "clip"),
        (["--candidates", "100000"], "must not exceed the vocabulary size"),
        (["--total-epsilon", "0"], "total epsilon"),
        (["--total-epsilon", "1", "--total-rho", "1"], "one bound"),
        (["--membership-success", "0.5"], "strictly between 0.5 and 1"),
        (["--delta", "0.1"], "below one over the number of places, 1/12"),
        (["--delta", "0"], "delta"),
    ],
)
def test_what_does_not_fit_the_guarantee_is_refused_before_a_deployment_is_made(
    corpus_deployment, monkeypatch, capsys, options, words
):
    run, environment = corpus_deployment
    monkeypatch.setenv("XDG_CONFIG_HOME", environment["XDG_CONFIG_HOME"])
    assert cli.main(["serve", str(run), "--port", "0", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert not (run / "ledger.sqlite").exists()


def test_options_of_the_corpus_guarantee_are_refused_for_the_other(deployment, monkeypatch, capsys):
    run, environment = deployment
    monkeypatch.setenv("XDG_CONFIG_HOME", environment["XDG_CONFIG_HOME"])
    for options in (["--clip", "0.5"], ["--total-epsilon", "8"], ["--temperature", "1"]):
        assert cli.main(["serve", str(run), "--port", "0", *options]) == 2
        assert f"carries the guarantee realised-world, and {options[0]} belongs to the other" in capsys.readouterr().err


def test_constants_stay_and_a_cap_is_never_raised(corpus_deployment, serve_corpus, monkeypatch, capsys):
    run, environment = corpus_deployment
    serve_corpus("--candidates", "8", "--membership-success", "0.6").end(signal.SIGTERM)
    monkeypatch.setenv("XDG_CONFIG_HOME", environment["XDG_CONFIG_HOME"])
    for options, words in ((["--gain", "3"], "gain"), (["--membership-success", "0.7"], "never raised")):
        assert cli.main(["serve", str(run), "--port", "0", *options]) == 2
        assert words in capsys.readouterr().err


def test_two_guarantees_over_one_corpus_are_served_only_if_the_operator_says_so(
    deployment, serve, corpus_deployment, serve_corpus, monkeypatch, capsys
):
    run, environment = corpus_deployment
    serve().end(signal.SIGTERM)
    monkeypatch.setenv("XDG_CONFIG_HOME", environment["XDG_CONFIG_HOME"])
    refused = ["serve", str(run), "--port", "0", "--candidates", "8"]
    assert cli.main(refused) == 2
    error = capsys.readouterr().err
    assert "was served under the guarantee realised-world" in error
    assert "--beside-other-guarantee" in error
    assert not (run / "ledger.sqlite").exists()
    serve_corpus("--candidates", "8", "--beside-other-guarantee").end(signal.SIGTERM)
    # From now on neither is served alone without a word.
    for each in (run, deployment[0]):
        assert cli.main(["serve", str(each), "--port", "0"]) == 2
        assert "--beside-other-guarantee" in capsys.readouterr().err


def test_of_two_kinds_that_start_at_once_at_most_one_is_served(tmp_path):
    served = ServedCorpus(Keyring(tmp_path / "keys", {}), "../a corpus")
    other = ServedCorpus(Keyring(tmp_path / "keys", {}), "another corpus")
    served.require_only(Guarantee.CORPUS)
    served.record(Guarantee.CORPUS, beside_other=False)
    other.record(Guarantee.REALISED_WORLD, beside_other=False)
    with pytest.raises(InvalidValueError, match="served under the guarantee corpus"):
        served.record(Guarantee.REALISED_WORLD, beside_other=False)
    served.require_only(Guarantee.CORPUS)
    served.record(Guarantee.CORPUS, beside_other=False)
    served.record(Guarantee.REALISED_WORLD, beside_other=True)
    with pytest.raises(InvalidValueError, match="served under the guarantee realised-world"):
        served.record(Guarantee.CORPUS, beside_other=False)
    # What stood before a refusal stands after it.
    with pytest.raises(InvalidValueError):
        served.require_only(Guarantee.REALISED_WORLD)
    names = sorted(path.name.split(".")[1] for path in (tmp_path / "served").iterdir())
    assert names == ["corpus", "realised-world", "realised-world"]
