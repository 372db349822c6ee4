"""The curator of a corpus deployment: charges before draws, a hard cap, one order, nothing that depends on worlds."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from reticent.dp.curator import CorpusBallot, CorpusCurator, CorpusReleaseRecord, CorpusState
from reticent.dp.relations import Relation
from reticent.dp.release import Aggregate, CorpusSettings, integer_weights
from reticent.errors import BudgetExhaustedError, InvalidValueError, StorageError
from reticent.randomness import SeededNoise, SystemNoise

SETTINGS = CorpusSettings(0.5, 2.0, 1.0, 3, 8, Relation.ADD_REMOVE)
CHARGE = SETTINGS.charge_units
TOKENS = np.array([11, 5, 7])


def aggregate(votes=(0, 0, 0)):
    return Aggregate(TOKENS, np.log([0.5, 0.3, 0.2]), np.array(votes, dtype=np.int64))


def ballot(step=0, votes=(0, 0, 0), **options):
    return CorpusBallot(aggregate(votes), f"request-{step}", step, **options)


def capped(tokens):
    return CorpusState(SETTINGS, cap_units=tokens * CHARGE + CHARGE - 1)


class Recorder:
    """A store and a source of bits that write down what happens in which order."""

    is_secure = True

    def __init__(self):
        self.events = []
        self.kept = None
        self.fails = self.keeps_when_failing = False

    def commit(self, state, records):
        self.events.append(("commit", state.tokens_released, len(records)))
        if not self.fails or self.keeps_when_failing:
            self.kept = state
        if self.fails:
            raise StorageError("the disk is full")

    def reconcile(self, state):
        self.events.append(("reconcile",))
        return self.kept or state

    def secret_bits(self, count):
        self.events.append(("draw", count))
        return 0


def test_the_charge_is_durable_before_anything_is_drawn():
    recorder = Recorder()
    curator = CorpusCurator(CorpusState(SETTINGS), recorder, recorder)
    curator.release_many([ballot(0), ballot(1)])
    curator.release(aggregate(), request="third", step=2)
    assert recorder.events == [
        ("commit", 2, 2), ("draw", 256), ("draw", 256), ("commit", 3, 1), ("draw", 256)
    ]  # fmt: skip
    assert curator.account.spent_units == 3 * CHARGE == curator.state.spent_units


def test_nothing_is_drawn_or_charged_where_the_store_fails():
    recorder = Recorder()
    curator = CorpusCurator(CorpusState(SETTINGS), recorder, recorder)
    curator.release(aggregate(), request="first", step=0)
    before = curator.state
    recorder.fails = True
    with pytest.raises(StorageError):
        curator.release(aggregate(), request="second", step=0)
    assert curator.state is before
    assert [event[0] for event in recorder.events] == ["commit", "draw", "commit"]


@pytest.mark.parametrize("was_kept", [True, False])
def test_after_a_commit_in_doubt_the_durable_state_stands(was_kept):
    recorder = Recorder()
    curator = CorpusCurator(CorpusState(SETTINGS), recorder, recorder)
    recorder.fails, recorder.keeps_when_failing = True, was_kept
    with pytest.raises(StorageError):
        curator.release(aggregate(), request="lost", step=0)
    recorder.fails = False
    curator.release(aggregate(), request="next", step=0)
    assert curator.state.tokens_released == 1 + was_kept
    assert curator.account.spent_units == (1 + was_kept) * CHARGE
    assert ("reconcile",) in recorder.events


def test_the_cap_is_hard_and_refusals_come_last():
    recorder = Recorder()
    curator = CorpusCurator(capped(3), recorder, recorder)
    assert curator.tokens_left == 3
    released = curator.release_many([ballot(step) for step in range(5)])
    assert [token is None for token in released] == [False, False, False, True, True]
    assert curator.tokens_left == 0
    assert curator.release_many([ballot()]) == [None]
    with pytest.raises(BudgetExhaustedError, match="cap"):
        curator.release(aggregate(), request="more", step=0)
    assert curator.state.tokens_released == 3
    assert [event[0] for event in recorder.events] == ["commit", "draw", "draw", "draw"]


@pytest.mark.parametrize("votes", [(0, 0, 0), (2**25, -(2**25), 0), (2**26, 2**26, 2**26)])
@pytest.mark.parametrize("temperature", [None, 1e-300, 0.5, 100.0])
def test_every_token_costs_the_same_whatever_worlds_and_users_do(votes, temperature):
    recorder = Recorder()
    curator = CorpusCurator(capped(9), recorder, recorder)
    token = curator.release(aggregate(votes), request="r", step=4, key_id="k", temperature=temperature)
    assert token.charge_units == CHARGE
    assert token.token in TOKENS
    assert curator.account.spent_units == CHARGE


def test_records_hold_what_the_user_knows():
    class Store(Recorder):
        def commit(self, state, records):
            self.events.append(records)

    store = Store()
    CorpusCurator(CorpusState(SETTINGS), store, SystemNoise()).release(aggregate(), request="r", step=4, key_id="k")
    assert store.events == [[CorpusReleaseRecord(4, "r", CHARGE, "k")]]


def test_tokens_follow_the_weights_of_their_own_ballot():
    curator = CorpusCurator.for_experiments(CorpusState(SETTINGS), Recorder(), SeededNoise(4))
    votes = ((2**26, -(2**26), 0), (-(2**26), 2**26, 2**25))
    counts = np.zeros((2, 3))
    for _ in range(3000):
        for row, token in enumerate(curator.release_many([ballot(0, votes[0]), ballot(1, votes[1])])):
            counts[row, list(TOKENS).index(token.token)] += 1
    for row in range(2):
        weights = integer_weights(aggregate(votes[row]), SETTINGS)
        assert counts[row] / 3000 == pytest.approx([weight / sum(weights) for weight in weights], abs=0.04)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ballot(temperature=0.0), "temperature"),
        (ballot(votes=(2**27, 0, 0)), "add up to more"),
        (CorpusBallot(Aggregate(TOKENS[:2], np.log([0.5, 0.5]), np.zeros(2, dtype=np.int64)), "r", 0), "candidates"),
    ],
)
def test_a_ballot_of_other_settings_charges_nothing(bad, message):
    recorder = Recorder()
    curator = CorpusCurator(CorpusState(SETTINGS), recorder, recorder)
    with pytest.raises(InvalidValueError, match=message):
        curator.release_many([ballot(), bad])
    assert recorder.events == []
    assert curator.account.spent_units == 0


def test_a_source_that_can_be_replayed_is_refused():
    with pytest.raises(InvalidValueError, match="SystemNoise"):
        CorpusCurator(CorpusState(SETTINGS), Recorder(), SeededNoise(1))


@pytest.mark.parametrize("changed", [{"spent_units": 1}, {"tokens_released": 1}, {"tokens_released": -1}])
def test_a_state_whose_account_does_not_add_up_is_refused(changed):
    with pytest.raises(InvalidValueError):
        CorpusCurator(replace(CorpusState(SETTINGS), **changed), Recorder(), SystemNoise())


def test_32_threads_drive_a_deployment_to_its_cap_and_never_past_it():
    class Store(Recorder):
        def commit(self, state, records):
            assert state.spent_units <= state.cap_units
            super().commit(state, records)

    store = Store()
    curator = CorpusCurator(capped(500), store, SystemNoise())
    released, start = [], threading.Barrier(32)

    def drive():
        start.wait()
        while True:
            tokens = curator.release_many([ballot(0), ballot(1), ballot(2)])
            released.append(sum(token is not None for token in tokens))
            if None in tokens:
                return

    threads = [threading.Thread(target=drive) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(released) == 500 == curator.state.tokens_released == store.kept.tokens_released
    assert curator.account.spent_units == 500 * CHARGE
    assert sum(event[2] for event in store.events) == 500
