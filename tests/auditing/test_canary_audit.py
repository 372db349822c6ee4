"""Canaries under a model whose memory is known: exposure, extraction by group, guessed coins, wrong labels."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from reticent.auditing.canaries.canary_audit import CanarySettings, audit_canaries, usable_canaries
from reticent.auditing.canaries.planting import CanaryKind, draw_canaries
from reticent.protocols import TokenSignals
from reticent.text.corpus import text_hash

SETTINGS = CanarySettings(num_candidates=255, num_samples=4, confidence=0.95)


class Memory:
    """Gives a text it has seen nine nats more than any other, whose log-probabilities follow from their hashes."""

    def __init__(self, canaries):
        self.seen = {canary.hash for canary in canaries if canary.member}
        self.asked = 0

    def signals_of(self, texts):
        self.asked += len(texts)
        return {text_hash(text): self.signals(text_hash(text)) for text in texts}

    def signals(self, key):
        logp = np.array([-10.0 - int(key[:8], 16) / 2**32 + 9.0 * (key in self.seen)])
        return TokenSignals(logp, logp, logp * 0, -logp, np.zeros(1, dtype=np.int64))

    def count_emitted(self, targets, num_samples, seed):
        remembered = [text_hash(f"{target.prompt} {target.secret}") in self.seen for target in targets]
        return [int(known) * (2 if num_samples else 1) for known in remembered]


def test_a_perfect_memory_is_exposed_extracted_and_told_from_its_coins():
    canaries = draw_canaries(CanaryKind.DIGITS, 20, (1, 4), seed=0)
    memory = Memory(canaries)
    found = audit_canaries(canaries, memory.signals_of, memory, SETTINGS)
    held_out, once, four_times = found.results
    assert [result.repetitions for result in found.results] == [0, 1, 4]
    assert [result.num_canaries for result in found.results] == [20, 10, 10]
    for planted in (once, four_times):
        assert all(exposure.rank == 1 and exposure.exposure_bits == 8.0 for exposure in planted.exposures)
        assert planted.extracted_greedy.value == planted.extracted_sampled.value == 1.0
        assert planted.samples_per_canary == 4
    assert held_out.extracted_greedy.value == 0.0
    assert 0.5 < held_out.mean_exposure_bits < 3.0, "chance gives log2(e) = 1.44 bits"
    assert memory.asked == 40 * 256
    assert (found.one_run.num_canaries, found.one_run.num_correct) == (20, 20)
    # All of 20 guesses right: q^20 = error at e^ε = q / (1 - q); five numbers of guesses share the error.
    q = (0.05 / 5) ** (1 / 20)
    assert found.one_run.epsilon == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    assert binom.sf(19, 20, q) == pytest.approx(0.01)


def test_a_model_without_memory_shows_no_epsilon():
    canaries = draw_canaries(CanaryKind.SECRETS, 40, (1,), seed=1)
    memory = Memory([])
    found = audit_canaries(canaries, memory.signals_of, memory, SETTINGS)
    assert found.one_run.epsilon < 0.5
    assert all(result.extracted_greedy.value == 0.0 for result in found.results)


def test_canaries_that_validation_took_leave_with_their_twins():
    canaries = draw_canaries(CanaryKind.DIGITS, 4, (1,), seed=2)
    trained_on = frozenset(canary.hash for canary in canaries if canary.member and canary.pair != 2)
    kept, (warning,) = usable_canaries(canaries, trained_on)
    assert {canary.pair for canary in kept} == {0, 1, 3}
    assert warning.startswith("1 pair(s)")
    assert usable_canaries(canaries, frozenset(canary.hash for canary in canaries if canary.member))[1] == ()
    assert "taken as planted" in usable_canaries(canaries, None)[1][0]


def test_kinds_with_the_same_numbers_of_pairs_are_kept_apart():
    canaries = [*draw_canaries(CanaryKind.DIGITS, 3, (1,), 0), *draw_canaries(CanaryKind.OOD, 3, (1,), 0)]
    trained_on = frozenset(c.hash for c in canaries if c.member and (c.kind, c.pair) != (CanaryKind.OOD, 1))
    kept, _ = usable_canaries(canaries, trained_on)
    assert len(kept) == 10
    memory = Memory(canaries)
    assert audit_canaries(kept, memory.signals_of, memory, SETTINGS).one_run.num_canaries == 5


def test_canaries_that_cannot_be_scored_or_asked_for_are_counted():
    canaries = draw_canaries(CanaryKind.DIGITS, 3, (1,), seed=0)
    memory = Memory(canaries)
    silent = canaries[0].hash

    def signals_of(texts):
        return memory.signals_of(texts) | ({silent: None} if canaries[0].text in texts else {})

    found = audit_canaries(canaries, signals_of, None, SETTINGS)
    assert found.warnings == ("1 of 6 canaries could not be scored and have no exposure",)
    assert sum(len(result.exposures) for result in found.results) == 5
    assert all(result.extracted_greedy is None and result.samples_per_canary == 0 for result in found.results)
    assert found.one_run.num_canaries == 2
