"""Members, held-out and validation records: apart, near-duplicates on one side, counts as asked."""

import numpy as np
import pytest
from pydantic import ValidationError

from reticent.errors import CorpusError
from reticent.text.corpus import TextRecord
from reticent.training.single_settings import SplitSettings
from reticent.training.splitting import split_records


def records(count, units=None):
    """Texts of ten random words each, so that no two are alike."""
    generator = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in generator.integers(0, 10**6, 10)) for _ in range(count)]
    return [TextRecord(text, str(i if units is None else units[i]), f"f:{i}") for i, text in enumerate(texts)]


def sides(split):
    return [set(part.tolist()) for part in (split.members, split.heldout, split.validation)]


def test_rows_held_out_for_validation_are_not_members():
    split = split_records(records(40), SplitSettings(heldout_count=12, val_fraction=0.25))
    members, heldout, validation = sides(split)
    assert (len(members), len(heldout), len(validation)) == (18, 12, 10)
    assert members | heldout | validation == set(range(40))  # which, being 40 in all, have no record in common
    assert all(np.array_equal(part, np.sort(part)) for part in (split.members, split.heldout, split.validation))


def test_the_split_is_a_function_of_the_seed():
    corpus = records(30)
    same = [split_records(corpus, SplitSettings(heldout_fraction=0.5, seed=seed)) for seed in (0, 0, 1)]
    assert np.array_equal(same[0].members, same[1].members)
    assert not np.array_equal(same[0].members, same[2].members)
    assert len(same[0].heldout) == 15


@pytest.mark.parametrize("seed", range(5))
def test_near_duplicates_and_units_stand_on_one_side(seed):
    corpus = records(24, units=[i // 2 if i < 8 else i for i in range(24)])
    # One more text that differs from an earlier one in capitals and punctuation alone, in a unit of its own.
    twin = TextRecord(corpus[10].text.upper().replace(" ", ", "), "twin", "f:24")
    split = split_records([*corpus, twin], SplitSettings(heldout_count=10, val_fraction=0.2, seed=seed))
    assert split.units.merged == 1
    for side in sides(split):
        assert (10 in side) == (24 in side)
        assert all((2 * unit in side) == (2 * unit + 1 in side) for unit in range(4))
    assert len(split.heldout) == 10


def test_demonstrations_are_the_only_members():
    split = split_records(records(20), SplitSettings(heldout_count=9, demonstrations=3))
    members, heldout, validation = sides(split)
    assert (len(members), len(heldout), len(validation)) == (3, 9, 0)
    assert not members & heldout


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heldout_count": 11}, r"11 records cannot hold out: 10 of 10"),
        ({"heldout_count": 10}, "no record of 10 is left to adapt on"),
        ({"heldout_count": 8, "demonstrations": 3}, r"3 records cannot be demonstrations: 2 of 10"),
    ],
)
def test_a_corpus_too_small_is_refused(settings, words):
    with pytest.raises(CorpusError, match=words):
        split_records(records(10), SplitSettings(**settings))


def test_a_group_too_large_for_a_side_goes_elsewhere_or_is_named():
    corpus = records(6, units=[0, 0, 0, 1, 1, 1])
    assert len(split_records(corpus, SplitSettings(heldout_fraction=0.5)).heldout) == 3
    with pytest.raises(CorpusError, match="records of one unit stay together"):
        split_records(corpus, SplitSettings(heldout_count=2))


def test_two_ways_to_hold_out_exclude_each_other():
    with pytest.raises(ValidationError, match="not both"):
        SplitSettings(heldout_count=3, heldout_fraction=0.5)
    with pytest.raises(ValidationError):
        SplitSettings(val_fraction=float("nan"))
