"""The ledger of a corpus deployment: constants, account and record, under tampering, copies, threads and kill -9."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corpus_tools import CHARGE, SETTINGS, corpus_ballot, open_corpus_ledger, release_corpus
from ledger_tools import copied, open_ledger, put_back, read_ledger, release, sql

from reticent.dp.curator import CorpusState
from reticent.dp.relations import Relation
from reticent.errors import BudgetExhaustedError, DeploymentStateError, InvalidValueError, StorageError
from reticent.guarantees import Guarantee
from reticent.ledger.corpus_store import deployed_constants
from reticent.ledger.database import Database
from reticent.ledger.usage import UsageTable
from reticent.randomness import SeededNoise

KILLS = 20


def test_a_deployment_goes_on_with_its_constants_and_its_account(run_dir, keyring, url):
    assert deployed_constants(run_dir, url) is None
    with open_corpus_ledger(run_dir, keyring, url, total_rho=1.0) as ledger:
        assert ledger.created
        release_corpus(ledger, 5)
        release_corpus(ledger, 6, batch=3, key_id="k1")
        left = ledger.curator.state
    assert left == CorpusState(SETTINGS, 11 * CHARGE, 2**64, 11)
    assert deployed_constants(run_dir, url) == SETTINGS
    for asked in (None, SETTINGS):
        with open_corpus_ledger(run_dir, keyring, url, settings=asked) as ledger:
            assert not ledger.created
            assert ledger.curator.state == left
    with read_ledger(run_dir, keyring, url) as reader:
        assert reader.header.guarantee is Guarantee.CORPUS
        assert reader.corpus_state == left
        totals = reader.verify()
        assert (totals.releases, totals.units) == (11, 11 * CHARGE)
        rows = [*reader.releases()]
        assert {row["rho"] for row in rows} == {CHARGE / 2**64}
        assert not any("nats" in row for row in rows)
    spending = UsageTable(Database.of_run(run_dir, url)).spending_by_key()
    assert (spending["k1"].tokens, spending["k1"].units) == (6, 6 * CHARGE)


def test_the_row_says_the_guarantee_and_its_constants(run_dir, keyring, url):
    open_corpus_ledger(run_dir, keyring, url).close()
    columns = "guarantee, clip, gain, temperature, num_candidates, num_worlds, relation"
    [row] = sql(run_dir, url, f"SELECT {columns} FROM deployment")
    assert tuple(row) == ("corpus", 0.1, 2.0, 1.3, 3, 16, "add-remove")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clip": 0.05}, "clip 0.1 .asked for: 0.05"),
        ({"gain": 1.0}, "gain 2.0"),
        ({"temperature": 1.0}, "temperature 1.3"),
        ({"num_candidates": 4}, "num_candidates 3"),
        ({"num_worlds": 32}, "num_worlds 16"),
        ({"relation": Relation.REPLACEMENT}, "relation add-remove"),
    ],
)
def test_other_constants_are_refused_by_name(run_dir, keyring, changed, message):
    open_corpus_ledger(run_dir, keyring).close()
    with pytest.raises(InvalidValueError, match=message):
        open_corpus_ledger(run_dir, keyring, settings=replace(SETTINGS, **changed))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE deployment SET clip = 0.01", "does not open"),
        ("UPDATE deployment SET gain = 1.0", "does not open"),
        ("UPDATE deployment SET temperature = 2.0", "does not open"),
        ("UPDATE deployment SET num_candidates = 4", "does not open"),
        ("UPDATE deployment SET num_worlds = 512", "does not open"),
        ("UPDATE deployment SET relation = 'replacement'", "does not open"),
        ("UPDATE deployment SET relation = 'zero-out'", "names no guarantee"),
        ("UPDATE deployment SET clip = NULL", "names no guarantee"),
        ("UPDATE deployment SET guarantee = 'both'", "names no guarantee"),
        ("UPDATE deployment SET charging_rule = 'dissent'", "does not open"),
        ("UPDATE releases SET charge_units = reserve_units || '' , step = 9 WHERE number = 2", "release 2"),
        ("DELETE FROM releases WHERE number = 4", "cut off|ends with"),
    ],
)
def test_an_edit_is_found(run_dir, keyring, statement, message):
    with open_corpus_ledger(run_dir, keyring) as ledger:
        release_corpus(ledger, 4)
    sql(run_dir, None, statement)
    with pytest.raises(DeploymentStateError, match=message):
        open_corpus_ledger(run_dir, keyring, settings=None)
    with pytest.raises(DeploymentStateError, match=message), read_ledger(run_dir, keyring) as reader:
        reader.verify()


@pytest.mark.parametrize("value", ["'realised-world'", "NULL"])
def test_a_deployment_cannot_be_edited_into_the_other_guarantee(run_dir, keyring, value):
    open_corpus_ledger(run_dir, keyring).close()
    sql(run_dir, None, f"UPDATE deployment SET guarantee = {value}")
    with pytest.raises(DeploymentStateError, match="not corpus"):
        open_corpus_ledger(run_dir, keyring)
    with pytest.raises(DeploymentStateError, match="does not open"):
        open_ledger(run_dir, keyring)


def test_a_ledger_opens_under_its_own_guarantee_alone(run_dir, keyring, url):
    open_corpus_ledger(run_dir, keyring, url).close()
    with pytest.raises(DeploymentStateError, match="guarantee corpus, not realised-world"):
        open_ledger(run_dir, keyring, url)
    with read_ledger(run_dir, keyring, url) as reader:
        for attempt in (lambda: reader.state, reader.units_by_rule):
            with pytest.raises(DeploymentStateError, match="guarantee corpus"):
                attempt()


def test_the_other_guarantees_ledger_is_refused(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
    assert deployed_constants(run_dir, url) is None
    with pytest.raises(DeploymentStateError, match="guarantee realised-world, not corpus"):
        open_corpus_ledger(run_dir, keyring, url)
    with read_ledger(run_dir, keyring, url) as reader:
        assert reader.header.guarantee is Guarantee.REALISED_WORLD
        with pytest.raises(DeploymentStateError, match="guarantee realised-world"):
            _ = reader.corpus_state


def test_an_older_copy_and_a_fork_are_refused(run_dir, keyring, url):
    with open_corpus_ledger(run_dir, keyring, url) as ledger:
        release_corpus(ledger, 2)
    earlier = copied(run_dir, url)
    with open_corpus_ledger(run_dir, keyring, url) as ledger:
        release_corpus(ledger, 2)
    put_back(run_dir, url, earlier)
    with pytest.raises(DeploymentStateError, match="old copy"):
        open_corpus_ledger(run_dir, keyring, url)


def test_a_ledger_that_is_put_back_while_in_use_releases_nothing_more(run_dir, keyring, url):
    with open_corpus_ledger(run_dir, keyring, url) as ledger:
        release_corpus(ledger, 2)
        with pytest.raises(DeploymentStateError, match="using"):
            open_corpus_ledger(run_dir, keyring, url)
        state = ledger.curator.state
        sql(run_dir, url, "UPDATE state SET tokens_released = 1")
        with pytest.raises(DeploymentStateError):
            release_corpus(ledger, 1)
        assert ledger.curator.state is state


def test_the_cap_is_set_and_lowered_but_never_raised(run_dir, keyring, url):
    with open_corpus_ledger(run_dir, keyring, url) as ledger:
        assert ledger.curator.tokens_left is None
        release_corpus(ledger, 3)
    with pytest.raises(InvalidValueError, match="are spent already"):
        open_corpus_ledger(run_dir, keyring, url, total_rho=2 * CHARGE / 2**64)
    with open_corpus_ledger(run_dir, keyring, url, total_rho=5.5 * CHARGE / 2**64) as ledger:
        assert ledger.curator.tokens_left == 2
        assert [token is None for token in release_corpus(ledger, 3, batch=3)] == [False, False, True]
        with pytest.raises(BudgetExhaustedError):
            ledger.curator.release(corpus_ballot(0).aggregate, request="r", step=0)
    with pytest.raises(InvalidValueError, match="never raised"):
        open_corpus_ledger(run_dir, keyring, url, total_rho=1.0)


@pytest.mark.parametrize("number", [float("nan"), 0.0, -1.0, float("inf"), 2.0**64])
def test_a_cap_out_of_range_creates_nothing(run_dir, keyring, number):
    with pytest.raises(InvalidValueError, match="total rho"):
        open_corpus_ledger(run_dir, keyring, total_rho=number)
    assert deployed_constants(run_dir) is None


def test_a_first_opening_needs_constants_and_a_secure_source(run_dir, keyring):
    with pytest.raises(InvalidValueError, match="clip, gain and temperature"):
        open_corpus_ledger(run_dir, keyring, settings=None)
    with pytest.raises(InvalidValueError, match="SystemNoise"):
        open_corpus_ledger(run_dir, keyring, bits=SeededNoise(1))
    assert deployed_constants(run_dir) is None
    assert not (run_dir / "ledger.sqlite").exists()


def test_after_a_lost_answer_the_durable_account_stands(run_dir, keyring, url, monkeypatch):
    with open_corpus_ledger(run_dir, keyring, url) as ledger:
        release_corpus(ledger, 2)
        advance = ledger._opened.writer.advance

        def lose_the_answer(*arguments):
            advance(*arguments)
            raise StorageError("the connection broke")

        monkeypatch.setattr(ledger._opened.writer, "advance", lose_the_answer)
        with pytest.raises(StorageError):
            release_corpus(ledger, 1)
        assert ledger.curator.state.tokens_released == 2
        monkeypatch.undo()
        release_corpus(ledger, 1)
        assert ledger.curator.state.tokens_released == 4
    with read_ledger(run_dir, keyring, url) as reader:
        assert reader.verify().units == 4 * CHARGE


def test_32_threads_drive_a_deployment_to_its_cap_and_never_past_it(run_dir, keyring, url):
    released = []
    with open_corpus_ledger(run_dir, keyring, url, total_rho=200.5 * CHARGE / 2**64) as ledger:
        start = threading.Barrier(32)

        def drive():
            start.wait()
            while True:
                tokens = ledger.curator.release_many([corpus_ballot(0), corpus_ballot(1), corpus_ballot(2)])
                released.append(sum(token is not None for token in tokens))
                if None in tokens:
                    return

        threads = [threading.Thread(target=drive) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(released) == 200
    with read_ledger(run_dir, keyring, url) as reader:
        totals = reader.verify()
        assert (totals.releases, totals.units) == (200, 200 * CHARGE)
        assert reader.corpus_state.account.left_units < CHARGE


def test_a_process_that_is_killed_twenty_times_has_charged_every_token_it_showed(run_dir, keyring, url):
    open_corpus_ledger(run_dir, keyring, url).close()
    script = Path(__file__).with_name("release_corpus_until_killed.py")
    arguments = [sys.executable, script, run_dir, keyring.folder, url or "-", str(KILLS), "17"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with read_ledger(run_dir, keyring, url) as reader:
        totals = reader.verify()
    shown, most = set(), 0
    for line in done.stdout.splitlines():
        word, number = line.split()
        if word == "opened":
            # What was shown before is charged, and at most one batch was charged without being shown.
            assert max(shown, default=-1) + 1 <= int(number) <= max(max(shown, default=-1) + 1, most) + 3
            most = int(number)
        else:
            assert int(word) not in shown
            shown.add(int(word))
    assert len(shown) >= KILLS // 2
    assert max(shown) < totals.releases
    assert totals.units == totals.releases * CHARGE


def test_nothing_of_the_votes_is_kept(run_dir, keyring):
    with open_corpus_ledger(run_dir, keyring) as ledger:
        release_corpus(ledger, 8)
    rows = sql(run_dir, None, "SELECT coin_key, num_active, charge_units, reserve_units FROM releases")
    assert len({tuple(row) for row in rows}) == 1
    assert np.unique([row.num_active for row in rows]).tolist() == [0]
