"""Privacy units against brute force: near-duplicates, unit names and their transitive closure."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from reticent.errors import CorpusError, InvalidValueError
from reticent.text.corpus import TextRecord, group_units
from reticent.text.deduplication import MAX_MISS_PROBABILITY, DisjointSets, bands_and_rows

LEXICON = [f"word{number}" for number in range(500)]


def random_text(rng, num_words):
    return rng.choices(LEXICON, k=num_words)


def edited(rng, words, num_edits):
    words = list(words)
    for position in rng.sample(range(len(words)), num_edits):
        words[position] = rng.choice(LEXICON)
    return words


def naive_shingles(words):
    size = min(5, len(words))
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def components(size, edges):
    """The component of each node of a graph, numbered by first node."""
    rows, columns = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1].tolist()
    order = list(dict.fromkeys(labels))
    return [order.index(label) for label in labels]


def naive_partition(texts, units, threshold):
    """Connected components of the graph of all similar pairs, with sets of tuples."""
    sets = [naive_shingles(text) for text in texts]
    edges = [
        (i, j)
        for j in range(len(texts))
        for i in range(j)
        if units[i] == units[j] or len(sets[i] & sets[j]) >= threshold * len(sets[i] | sets[j])
    ]
    return components(len(texts), edges)


def make_records(texts, units=None):
    units = units or [str(position) for position in range(len(texts))]
    return [TextRecord(" ".join(text), unit, "") for text, unit in zip(texts, units, strict=True)]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.8, 1.0])
def test_partition_equals_brute_force(threshold):
    rng = random.Random(20)
    texts = []
    for _ in range(40):
        base = random_text(rng, rng.choice([3, 5, 30, 120]))
        texts += [base, *(edited(rng, base, rng.randrange(len(base) // 12 + 1)) for _ in range(3))]
    rng.shuffle(texts)
    units = [str(rng.randrange(1500)) for _ in texts]
    expected = naive_partition(texts, units, threshold)
    found = group_units(make_records(texts, units), threshold)
    assert found.unit_of_record.tolist() == expected
    assert found.num_units == max(expected) + 1
    assert found.merged == len(set(units)) - found.num_units
    assert found.merged > 0


def test_exact_index_decides_on_both_sides_of_the_threshold():
    base = [f"w{number}" for number in range(104)]
    tail_changed = [*base[:-6], *(f"x{number}" for number in range(6))]
    jaccard = 94 / (100 + 100 - 94)
    for threshold, num_units in ((jaccard - 1e-9, 2), (jaccard + 1e-9, 3)):
        assert group_units(make_records([base, tail_changed, ["other"]]), threshold).num_units == num_units


def test_case_punctuation_and_compatibility_forms_do_not_matter():
    texts = ["The ﬁnal report, of MAY!", "the final  report of\nmay", "the final report of june"]
    units = group_units([TextRecord(text, str(i), "") for i, text in enumerate(texts)])
    assert units.unit_of_record.tolist() == [0, 0, 1]


def test_scripts_without_spaces_are_compared_by_character():
    sentence = "患者は昨日から発熱と咳があり本日当院を受診したため胸部の検査を行い薬を処方して帰宅とした"
    texts = [sentence, sentence[:-1] + "い", "本日は異常なし"]
    units = group_units([TextRecord(text, str(i), "") for i, text in enumerate(texts)])
    assert units.unit_of_record.tolist() == [0, 0, 1]


def test_texts_without_words_are_equal_only_to_themselves():
    units = group_units([TextRecord(text, str(i), "") for i, text in enumerate(["!!!", "...", "!!!", "a"])])
    assert units.unit_of_record.tolist() == [0, 1, 0, 2]


def test_merging_is_transitive_through_unit_names_and_texts():
    rng = random.Random(3)
    a, b, c = (random_text(rng, 60) for _ in range(3))
    texts = [a, b, b, c, c, random_text(rng, 60)]
    units = group_units(make_records(texts, ["ann", "ann", "bob", "bob", "cem", "dia"]))
    assert units.unit_of_record.tolist() == [0, 0, 0, 0, 0, 1]
    assert (units.num_units, units.merged) == (2, 2)


def test_fewer_than_two_units_is_refused():
    rng = random.Random(4)
    text = random_text(rng, 50)
    for texts, units in (([], []), ([text], ["a"]), ([text, text], ["a", "b"]), ([text, ["else"]], ["a", "a"])):
        with pytest.raises(CorpusError, match="at least 2 are needed"):
            group_units(make_records(texts, units))


@pytest.mark.parametrize("threshold", [0.0, -0.1, 1.01, float("nan")])
def test_threshold_outside_its_range_is_refused(threshold):
    with pytest.raises(InvalidValueError, match="threshold"):
        group_units(make_records([["a"], ["b"]]), threshold)


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.8, 0.95, 1.0])
def test_misses_at_the_threshold_are_as_rare_as_stated(threshold):
    num_bands, rows = bands_and_rows(threshold)
    assert num_bands * rows <= 128
    assert (1 - threshold**rows) ** num_bands <= MAX_MISS_PROBABILITY
    if rows < 64:
        assert (1 - threshold ** (rows + 1)) ** (128 // (rows + 1)) > MAX_MISS_PROBABILITY


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=40))
def test_disjoint_sets_equal_connected_components(joins):
    sets = DisjointSets(20)
    for first, second in joins:
        sets.join(first, second)
    expected = components(20, joins)
    assert [sets.find(item) for item in range(20)] == [expected.index(label) for label in expected]


def test_unit_numbers_are_read_only():
    units = group_units(make_records([["a"], ["b"]]))
    with pytest.raises(ValueError, match="read-only"):
        units.unit_of_record[0] = 1
    assert units.unit_of_record.dtype == np.int64


def test_units_whose_texts_are_alike_only_once_cut_are_merged_and_counted():
    rng = random.Random(3)
    heads = [random_text(rng, 30) for _ in range(3)]
    whole = [heads[0] + random_text(rng, 90), heads[0] + random_text(rng, 90)]
    whole += [edited(rng, heads[0], 1) + random_text(rng, 90), heads[1] + random_text(rng, 90), heads[2]]
    whole += [[*heads[2], "end"]]
    records = make_records(whole)
    cut = [" ".join(text[:30]) for text in whole]
    assert group_units(records).unit_of_record.tolist() == [0, 1, 2, 3, 4, 4]
    found = group_units(records, 0.6, texts_as_trained=cut)
    expected = naive_partition([text[:30] for text in whole], [record.unit for record in records], 0.6)
    assert found.unit_of_record.tolist() == expected == [0, 0, 0, 1, 2, 2]
    assert (found.num_units, found.merged, found.merged_once_cut) == (3, 3, 2)


def test_one_unit_once_cut_is_refused_and_said():
    records = make_records([["same", "one"], ["same", "two"]])
    with pytest.raises(CorpusError, match="1 merged as near-duplicates, 1 of them once cut"):
        group_units(records, texts_as_trained=["same", "same"])
