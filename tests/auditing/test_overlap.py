"""Texts in both sets and near-duplicates, found before anything is scored; nothing but hashes leaves."""

import hashlib

import pytest

from reticent.auditing.inputs.overlap import TextSet, abbreviate_hashes, compare_sets, refuse_shared_texts
from reticent.errors import AuditError

LONG = "the patient was seen on monday morning and complained of a persistent dry cough without any fever or pain"
ALMOST = LONG.replace("fever", "chills").upper()
OTHER = "quarterly revenue rose by nine percent because two new regions were opened during the spring of last year"


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_repeats_within_a_set_are_left_out_and_counted():
    found = TextSet.of("members", ["b", "a", "b", "b"])
    assert found.texts == ("b", "a")
    assert found.hashes == (sha("b"), sha("a"))
    assert found.num_repeats == 2


def test_an_empty_set_is_refused_by_name():
    with pytest.raises(AuditError, match="set of non-members is empty"):
        TextSet.of("non-members", [])


def test_overlapping_sets_are_refused_with_count_and_hashes_and_without_text():
    members = TextSet.of("members", ["private one", "private two", "three"])
    nonmembers = TextSet.of("non-members", ["private two", "four", "private one"])
    with pytest.raises(AuditError) as caught:
        refuse_shared_texts(members, nonmembers)
    message = str(caught.value)
    assert message.startswith("2 text(s)")
    assert sha("private one")[:12] in message
    assert sha("private two")[:12] in message
    assert "private" not in message


def test_disjoint_sets_pass():
    refuse_shared_texts(TextSet.of("members", ["a"]), TextSet.of("non-members", ["A", "a "]))


def test_a_near_duplicate_of_a_member_is_named_once_with_its_member():
    # The 17th of 19 words differs, so 3 of 15 shingles do: the Jaccard index is 12 / 18.
    members = TextSet.of("members", [OTHER, LONG])
    nonmembers = TextSet.of("non-members", ["something else entirely with enough words in it", ALMOST])
    (pair,) = compare_sets(members, nonmembers, threshold=0.66).near_duplicates
    assert (pair.member_hash, pair.nonmember_hash) == (sha(LONG), sha(ALMOST))
    assert compare_sets(members, nonmembers, threshold=0.67).near_duplicates == ()


def test_texts_that_a_model_reads_alike_are_near_duplicates_whatever_follows():
    members, nonmembers = TextSet.of("members", [f"{LONG} {OTHER}"]), TextSet.of("non-members", [OTHER, f"{LONG} x"])
    assert compare_sets(members, nonmembers).near_duplicates == ()
    (pair,) = compare_sets(members, nonmembers, read_texts=[LONG, OTHER, LONG]).near_duplicates
    assert (pair.member_hash, pair.nonmember_hash) == (members.hashes[0], nonmembers.hashes[1])


def test_near_duplicates_within_one_side_are_not_reported():
    members = TextSet.of("members", [LONG, ALMOST])
    found = compare_sets(members, TextSet.of("non-members", [OTHER]), threshold=0.5)
    assert found.near_duplicates == ()
    assert found.groups[0] == found.groups[1] != found.groups[2]


def test_many_hashes_are_counted_not_listed():
    hashes = [f"{i:064x}" for i in range(8)]
    assert abbreviate_hashes(hashes).endswith("and 3 more")
    assert "more" not in abbreviate_hashes(hashes[:5])
