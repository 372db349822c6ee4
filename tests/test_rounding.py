"""The rule for orders computed along two paths: exchanges within rounding pass, all others are flagged."""

import numpy as np
import pytest
from rounding import assert_largest, assert_possible_ranks, clear_largest, decided_votes, enlarged, possible_ranks

from reticent.decoding.logit_votes import cast_votes
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.randomness import PublicCoins

# With a tolerance of 0.001 two values near 1 are exchanged if they are nearer than 0.004.
VALUES = np.array([[1.0, 3.0, 1.003, 0.9, 2.0]])


def test_a_rank_may_be_off_by_the_values_within_rounding_and_no_more():
    assert [bound.tolist() for bound in possible_ranks(VALUES, [0], 1e-3)] == [[2], [3]]
    assert [bound.tolist() for bound in possible_ranks(VALUES, [4], 1e-3)] == [[1], [1]]
    for rank in (2, 3):
        assert_possible_ranks([rank], VALUES, [0], 1e-3)
    for rank, tolerance in ((1, 1e-3), (4, 1e-3), (2, 1e-4)):
        with pytest.raises(AssertionError, match="possible are"):
            assert_possible_ranks([rank], VALUES, [0], tolerance)


def test_the_largest_may_be_exchanged_within_rounding_and_no_further():
    assert_largest([1], VALUES, 1e-3)
    assert_largest([[4, 1, 0]], VALUES, 1e-3)
    assert_largest([[4, 1, 2]], VALUES, 1e-3)
    for wrong, words in (([4], "larger"), ([[1, 4, 3]], "larger"), ([[1, 1]], "twice")):
        with pytest.raises(AssertionError, match=words):
            assert_largest(wrong, VALUES, 1e-3)
    with pytest.raises(AssertionError, match="larger"):
        assert_largest([[4, 1, 0]], VALUES, 1e-4)


def test_the_tolerance_grows_with_what_rounding_does_to_a_peer_and_not_with_ours():
    exact = np.array([[1.0, 2.0]])
    assert enlarged(exact, exact, 1e-3) == 1e-3
    assert enlarged(np.array([[1.0, 2.001]]), exact, 1e-3) == pytest.approx(0.011)


def test_choices_are_clear_where_rounding_cannot_change_them():
    assert clear_largest(VALUES[0], 1, 1e-3) == [1]
    assert clear_largest(VALUES[0], 2, 1e-3) == [1, 4]
    assert clear_largest(VALUES[0], 3, 1e-3) is None
    assert clear_largest(VALUES[0], 3, 1e-4) == [1, 2, 4]
    assert clear_largest(VALUES[0], 5, 1e-3) == [0, 1, 2, 3, 4]


class Shaken:
    """Fixed logits of three worlds, each moved by up to a tolerance as another kernel would."""

    def __init__(self, seed, tolerance, moves):
        generator = np.random.default_rng(seed)
        self.public, self.worlds = generator.normal(size=30), generator.normal(size=(3, 30))
        if moves is not None:
            move = np.random.default_rng(moves)
            for logits in (self.public, self.worlds):
                logits += tolerance * (1 + abs(logits)) * move.choice([-1.0, 1.0], size=logits.shape)

    def public_logits(self, context):
        return self.public

    def world_logits(self, context, candidates_K):
        return self.worlds[:, candidates_K]


@pytest.mark.parametrize("decoder", list(Decoder))
def test_a_decided_vote_stays_whatever_the_rounding_and_others_do_change(decoder):
    settings = DecodingSettings(decoder, 1.0, num_candidates=6, temperature=0.7)
    coins, seen, changed = PublicCoins.from_seed(1, 0), [], []
    for seed in range(200):
        still = Shaken(seed, 0.01, None)
        decided, votes = (choose(still, None, settings, coins, seed) for choose in (_decided, cast_votes))
        for moves in range(4):
            moved = cast_votes(Shaken(seed, 0.01, moves), None, settings, coins, seed)
            assert (moved == votes)[decided].all()
            changed.append((moved != votes)[~decided].any())
        seen.append(decided)
    assert 0.3 < np.mean(seen) < 1
    assert any(changed)


def _decided(ensemble, context, settings, coins, step):
    return decided_votes(ensemble, context, settings, coins, step, tolerance=0.01)
