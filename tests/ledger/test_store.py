"""Creating, continuing and committing; every test runs on SQLite and on PostgreSQL."""

import queue
import threading
from dataclasses import replace

import numpy as np
import pytest
from ledger_tools import (
    BUDGET,
    WORLDS,
    ReplayableNoise,
    assert_same,
    ballot,
    only,
    open_ledger,
    read_ledger,
    release,
    replayed,
    sql,
)

from reticent.errors import BudgetExhaustedError, DeploymentStateError, InvalidValueError, StorageError
from reticent.ledger import opening, schema
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.reset import void_ledger
from reticent.pac.accounting import cap_units, charge_units, units_to_nats
from reticent.pac.charging import Charging
from reticent.pac.curator import CuratorState, ReleaseRecord
from reticent.randomness import SeededNoise, SystemNoise


def record(step=0, units=1, **fields):
    return ReleaseRecord(step, "r", None, 2, units, units, **fields)


def after(state, tokens=1, units=1):
    generator = np.random.default_rng(state.tokens_released)
    return CuratorState(
        secret=state.secret,
        log_posterior=generator.normal(size=state.log_posterior.size) * 10.0 ** generator.integers(-9, 9),
        spent_units=state.spent_units + units * tokens,
        cap_units=state.cap_units,
        tokens_released=state.tokens_released + tokens,
        dissenting_steps=state.dissenting_steps + 1,
    )


@pytest.mark.parametrize("total_budget", [None, 0.25, 2.0**63])
def test_a_new_deployment_starts_uniform_and_reopens_as_it_was(run_dir, keyring, url, total_budget):
    with open_ledger(run_dir, keyring, url, total_budget=total_budget) as ledger:
        created = ledger.curator.state
        assert ledger.created
        assert ledger.healthy()
    assert not ledger.healthy()
    assert created.secret == 3
    np.testing.assert_allclose(np.exp(created.log_posterior), 1 / WORLDS)
    assert created.cap_units == (None if total_budget is None else cap_units(total_budget))
    with open_ledger(run_dir, keyring, url, total_budget=total_budget) as ledger:
        assert not ledger.created
        assert_same(ledger.curator.state, created)


def test_every_commit_round_trips_bit_exactly(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url, total_budget=1e9) as ledger:
        state = ledger.curator.state
        for _ in range(5):
            state = after(state, tokens=3, units=3**50)
            ledger.commit(state, [record(units=3**50)] * 3)
            with read_ledger(run_dir, keyring, url) as reader:
                assert_same(reader.state, state)
                assert reader.verify().units == state.spent_units == reader.verify().releases * 3**50


def test_restarts_and_batches_leave_the_history_of_a_deployment_that_never_stopped(run_dir, keyring, url):
    tokens = []
    for count, batch in ((2, 1), (6, 3), (0, 1), (8, 4)):
        noise = ReplayableNoise()
        with open_ledger(run_dir, keyring, url, noise=noise) as ledger:
            noise.position = ledger.curator.state.tokens_released
            tokens += [token.token for token in release(ledger, count, batch)]
            state = ledger.curator.state
    expected_tokens, expected = replayed(16)
    assert tokens == expected_tokens
    assert_same(state, expected)
    with read_ledger(run_dir, keyring, url) as reader:
        assert_same(reader.state, expected)
        assert (reader.verify().releases, reader.verify().units) == (16, 16 * charge_units(BUDGET))


def test_a_deployment_goes_on_after_a_token_of_tiny_mass(run_dir, keyring, url):
    """Two worlds, the realised one and another, have mass 10^-9: log-likelihoods near 10^9 meet log-weights near 1."""
    light = np.isin(np.arange(WORLDS), (3, 5)).astype(np.int64)
    weights = np.full(WORLDS, (1 - 1e-9) / (WORLDS - 2))
    weights[[3, 5]] = 0.3e-9, 0.7e-9
    with open_ledger(run_dir, keyring, url) as ledger:
        state = replace(after(ledger.curator.state), log_posterior=np.log(weights))
        ledger.commit(state, [record()])
    with open_ledger(run_dir, keyring, url) as ledger:
        ledger.curator.release(light, Charging(0.3), request="r", step=0)
        left = ledger.curator.state
    with open_ledger(run_dir, keyring, url) as ledger:
        assert_same(ledger.curator.state, left)
        np.testing.assert_allclose(np.exp(left.log_posterior[[3, 5]]), [0.3, 0.7], rtol=1e-12)
        release(ledger, 3)


def test_charges_past_64_bits_and_a_million_small_ones_add_up_exactly(run_dir, keyring, url):
    small, huge = charge_units(2.0**-32), 2**100 + 1
    with open_ledger(run_dir, keyring, url) as ledger:
        state = after(ledger.curator.state, tokens=1, units=10**6 * small)
        ledger.commit(state, [record(units=10**6 * small)])
        state = after(state, tokens=20, units=huge)
        ledger.commit(state, [record(units=huge)] * 20)
    with read_ledger(run_dir, keyring, url) as reader:
        assert reader.verify().units == 10**6 * 2**32 + 20 * (2**100 + 1)
        first = next(reader.releases())
    assert first["nats"] == 10**6 / 2**32 == units_to_nats(10**6 * small)


def test_an_account_that_no_ledger_holds_is_refused_before_it_is_written(run_dir, keyring):
    with open_ledger(run_dir, keyring) as ledger:
        state = ledger.curator.state
        with pytest.raises(InvalidValueError, match=r"2\^64 nats"):
            ledger.commit(after(state, units=2**128), [record(units=2**128)])
        assert_same(ledger.reconcile(state), state)
        ledger.commit(after(state, units=2**128 - 1), [record(units=2**128 - 1)])


def test_the_secret_is_drawn_over_all_worlds(tmp_path, keyring):
    drawn = set()
    for attempt in range(24):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with open_ledger(folder, keyring, num_worlds=2, noise=SystemNoise()) as ledger:
            drawn.add(ledger.curator.state.secret)
    assert drawn == {0, 1}


def test_a_seeded_source_and_numbers_out_of_range_are_refused(run_dir, keyring, url):
    with pytest.raises(InvalidValueError, match="SystemNoise"):
        open_ledger(run_dir, keyring, url, noise=SeededNoise(0))
    for budget in (2.0**64, float("nan"), 0.0):
        with pytest.raises(InvalidValueError, match=r"total.budget"):
            open_ledger(run_dir, keyring, url, total_budget=budget)
    with pytest.raises(InvalidValueError, match="even"):
        open_ledger(run_dir, keyring, url, num_worlds=7)
    assert not (run_dir / "ledger.sqlite").exists()
    assert not keyring.folder.exists()


def test_a_cap_is_set_and_lowered_to_what_is_spent_and_never_raised(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 3)
        assert ledger.curator.account.cap_units is None
    for cap in (0.5, 4 * BUDGET, 4 * BUDGET, None, 3 * BUDGET):
        with open_ledger(run_dir, keyring, url, total_budget=cap) as ledger:
            expected = cap_units(4 * BUDGET if cap is None else cap)
            assert ledger.curator.account.cap_units == expected
        for refused, message in ((1.0, "never raised"), (2 * BUDGET, "spent already")):
            with pytest.raises(InvalidValueError, match=message):
                open_ledger(run_dir, keyring, url, total_budget=refused)
        with read_ledger(run_dir, keyring, url) as reader:
            assert reader.state.cap_units == expected
            assert reader.verify().releases == 3
    with open_ledger(run_dir, keyring, url) as ledger, pytest.raises(BudgetExhaustedError):
        ledger.curator.release(np.arange(WORLDS), Charging(BUDGET), request="r", step=0)


def test_the_number_of_worlds_must_fit(run_dir, keyring, url):
    open_ledger(run_dir, keyring, url, total_budget=0.5).close()
    with pytest.raises(DeploymentStateError, match="made for 8 worlds, and this run has 16"):
        open_ledger(run_dir, keyring, url, num_worlds=16)
    open_ledger(run_dir, keyring, url).close()


def test_nothing_outside_the_seal_depends_on_the_secret(tmp_path):
    shapes = set()
    for secret in range(WORLDS):
        folder, keyring = tmp_path / f"run{secret}", Keyring(tmp_path / f"keys{secret}", {})
        folder.mkdir()
        with open_ledger(folder, keyring, noise=ReplayableNoise(secret)) as ledger:
            release(ledger, 2)
            text = repr(ledger)
        deployment = only(keyring.folder, "*.key").stem
        files = sorted(
            (path.name.replace(deployment, "ID"), path.stat().st_size, path.stat().st_mode)
            for base in (folder, keyring.folder)
            for path in base.iterdir()
        )
        [row] = sql(folder, None, "SELECT length(sealed) AS n, tokens_released, writer_epoch FROM state")
        rows = sql(folder, None, "SELECT request, step, num_active, charge_units, key_id FROM releases")
        # The lock file holds a path, whose length is that of the folder's name.
        shapes.add((tuple(files), text.replace(f"run{secret}", "RUN"), tuple(row), tuple(map(tuple, rows))))
    assert len(shapes) == 1
    assert all(mode & 0o077 == 0 for _, _, mode in next(iter(shapes))[0])


def test_at_the_cap_many_clients_never_get_more_than_it_holds(run_dir, keyring, url):
    """Sixteen threads ask as fast as they are answered; one thread releases what is waiting, in one commit."""
    waiting = queue.Queue()
    answers = queue.Queue()

    def client(name):
        for _ in range(6):
            mine = queue.Queue()
            waiting.put((name, mine))
            answers.put((name, mine.get(timeout=30)))

    with open_ledger(run_dir, keyring, url, total_budget=50.5 * BUDGET) as ledger:
        clients = [threading.Thread(target=client, args=(f"k{name}",)) for name in range(16)]
        for thread in clients:
            thread.start()
        while any(thread.is_alive() for thread in clients) or not waiting.empty():
            try:
                batch = [waiting.get(timeout=0.05)]
            except queue.Empty:
                continue
            while not waiting.empty():
                batch.append(waiting.get())
            start = ledger.curator.state.tokens_released
            ballots = [ballot(start + i, key_id=name) for i, (name, _) in enumerate(batch)]
            for (_, mine), token in zip(batch, ledger.curator.release_many(ballots), strict=True):
                mine.put(token)
        released = [name for name, token in answers.queue if token is not None]
        assert len(answers.queue) == 16 * 6
        assert len(released) == 50
        with pytest.raises(BudgetExhaustedError, match="total budget"):
            ledger.curator.release(np.arange(WORLDS), Charging(BUDGET), request="r", step=0)
    with read_ledger(run_dir, keyring, url) as reader:
        assert reader.verify().units == 50 * charge_units(BUDGET) <= cap_units(50.5 * BUDGET)
        counted = {use.key_id: use.tokens for use in reader.usage()}
    assert counted == {name: released.count(name) for name in set(released)}


def test_a_commit_follows_the_last_and_ends_with_the_ledger(run_dir, keyring, url):
    ledger = open_ledger(run_dir, keyring, url)
    state = ledger.curator.state
    with ledger:
        ledger.commit(after(state, tokens=3), [record()] * 3)
        for tokens, records in ((3, 3), (4, 2), (4, 0), (2, 1)):
            with pytest.raises(DeploymentStateError, match="must follow"):
                ledger.commit(after(state, tokens=tokens), [record()] * records)
    with pytest.raises(DeploymentStateError, match="closed"):
        ledger.commit(after(state, tokens=4), [record()])
    ledger.close()


def test_a_creation_that_fails_leaves_nothing_that_blocks_the_next(run_dir, keyring, url, monkeypatch):
    def no_space(*_):
        raise StorageError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "seal", no_space)
        with pytest.raises(StorageError, match="disk full"):
            open_ledger(run_dir, keyring, url)
    assert not list(keyring.folder.iterdir())
    assert not list(run_dir.glob("ledger*"))
    open_ledger(run_dir, keyring, url).close()


def test_a_missing_ledger_key_or_mark_is_named(run_dir, keyring, url):
    with pytest.raises(DeploymentStateError, match="there is no ledger at"):
        read_ledger(run_dir, keyring, url)
    open_ledger(run_dir, keyring, url).close()
    mark, key = only(keyring.folder, "*.mark"), only(keyring.folder, "*.key")
    for path, message in ((mark, r"\.mark"), (key, "restore the key")):
        content = path.read_bytes()
        path.unlink()
        for attempt in (open_ledger, read_ledger):
            with pytest.raises(DeploymentStateError, match=message):
                attempt(run_dir, keyring, url)
        path.write_bytes(content)
        path.chmod(0o600)
    open_ledger(run_dir, keyring, url).close()


def test_a_newer_schema_is_named(run_dir, keyring, url, monkeypatch):
    newer = schema.SCHEMA_VERSION + 1
    with monkeypatch.context() as patch:
        patch.setattr(schema, "SCHEMA_VERSION", newer)
        open_ledger(run_dir, keyring, url).close()
    with pytest.raises(DeploymentStateError, match=rf"schema version {newer}.*upgrade"):
        open_ledger(run_dir, keyring, url)


def test_a_ledger_that_is_elsewhere_is_not_taken_for_one_that_never_was(run_dir, keyring, tmp_path):
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.sqlite"
    open_ledger(run_dir, keyring, elsewhere).close()
    with pytest.raises(DeploymentStateError, match=r"last kept in .*elsewhere\.sqlite: name that with --database-url"):
        open_ledger(run_dir, keyring)
    (tmp_path / "elsewhere.sqlite").unlink()
    with pytest.raises(DeploymentStateError, match="restore it"):
        open_ledger(run_dir, keyring, elsewhere)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "nonsense", "sqlserver://u:pw@h/d"])
def test_a_url_of_no_ledger_is_refused_without_its_password(run_dir, url):
    with pytest.raises(InvalidValueError, match="postgresql://") as refusal:
        Database.of_run(run_dir, url)
    assert "pw" not in str(refusal.value)


def test_a_password_is_never_shown():
    database = Database.of_run(None, "postgresql://user:hunter2@127.0.0.1:1/d")
    with pytest.raises(StorageError) as refusal:
        opening.existing_header(database)
    assert "hunter2" not in str(refusal.value) + str(database) + repr(database)


def test_voiding_leaves_nothing_to_continue_from(run_dir, keyring, url):
    database = Database.of_run(run_dir, url)
    with pytest.raises(DeploymentStateError, match="nothing to reset"):
        void_ledger(run_dir, keyring, database)
    assert not list(run_dir.iterdir())
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
        with pytest.raises(DeploymentStateError, match="another process"):
            void_ledger(run_dir, keyring, database)
    kept = {path.name: path.read_bytes() for path in keyring.folder.iterdir() if path.suffix != ".lock"}
    voided = void_ledger(run_dir, keyring, database)
    assert not voided.copy_alone
    assert sorted(keyring.folder.iterdir()) == sorted(voided.set_aside)
    assert {path.name.partition(".reset-")[0]: path.read_bytes() for path in voided.set_aside} == kept
    assert {path.stat().st_mode & 0o077 for path in voided.set_aside} == {0}
    with pytest.raises(DeploymentStateError, match="there is no ledger"):
        read_ledger(run_dir, keyring, url)
    with open_ledger(run_dir, keyring, url) as ledger:
        assert ledger.created
        assert ledger.curator.state.tokens_released == 0
