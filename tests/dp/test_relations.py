"""The guarantees and the neighbouring relations, as names that are kept in files."""

import pytest

from reticent.dp.relations import DESCRIPTIONS, Relation, relation_for
from reticent.errors import InvalidValueError
from reticent.guarantees import DEFAULT_GUARANTEE, HIDES, Guarantee


def test_names_that_manifests_and_ledgers_keep():
    assert [guarantee.value for guarantee in Guarantee] == ["realised-world", "corpus"]
    assert [relation.value for relation in Relation] == ["replacement", "add-remove"]
    assert DEFAULT_GUARANTEE is Guarantee.REALISED_WORLD


def test_every_name_has_a_line():
    assert set(HIDES) == set(Guarantee)
    assert set(DESCRIPTIONS) == set(Relation)


@pytest.mark.parametrize(("places", "relation"), [(1, "add-remove"), (2, "replacement"), (7, "replacement")])
def test_only_worlds_of_one_place_have_the_tighter_relation(places, relation):
    assert relation_for(places) == relation


@pytest.mark.parametrize("places", [0, -1, 1.0, True])
def test_places_are_a_positive_integer(places):
    with pytest.raises(InvalidValueError, match="places"):
        relation_for(places)
