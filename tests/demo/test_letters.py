"""The synthetic letters: deterministic, varied, with a ground truth that the texts bear out."""

import json
import re
import string
import sys
from collections import Counter, defaultdict

import pytest

from reticent.demo import phrases
from reticent.demo.letters import generate_letters, write_letters
from reticent.errors import InvalidValueError, OutputExistsError, ReticentError
from reticent.text.corpus import TextRecord, group_units, read_corpus

pytest.importorskip("faker")

COUNT = 600


@pytest.fixture(scope="module")
def letters():
    return generate_letters(COUNT, seed=1)


def test_letters_are_a_pure_function_of_their_arguments(letters):
    assert generate_letters(COUNT, seed=1) == letters
    other = generate_letters(COUNT, seed=2)
    assert not {letter.text for letter in other} & {letter.text for letter in letters}


def test_ids_are_unique_and_some_patients_have_several_letters(letters):
    assert len({letter.id for letter in letters}) == COUNT
    per_patient = Counter(Counter(letter.patient for letter in letters).values())
    assert set(per_patient) == {1, 2, 3}
    assert per_patient[1] > per_patient[2] > per_patient[3] > 5


def test_personal_data_stand_verbatim_and_belong_to_one_patient(letters):
    owners = defaultdict(set)
    for letter in letters:
        kinds = {item.kind for item in letter.personal}
        assert {"name", "date_of_birth", "record_number"} <= kinds
        for item in letter.personal:
            assert item.value in letter.text
            if item.kind in ("record_number", "address"):
                owners[item.value].add(letter.patient)
    assert all(len(patients) == 1 for patients in owners.values())
    seen = Counter(item.kind for letter in letters for item in letter.personal)
    assert {"phone", "address", "diagnosis", "medication"} < set(seen)
    assert min(seen.values()) > COUNT / 4


def test_no_record_number_or_diagnosis_is_left_out_of_the_ground_truth(letters):
    for letter in letters:
        stated = {item.value for item in letter.personal}
        for condition in phrases.CONDITIONS:
            assert (condition.diagnosis in letter.text) <= (condition.diagnosis in stated)
        assert set(re.findall(r"999 \d{3} \d{4}", letter.text)) <= stated


def test_canaries_are_repeated_as_stated_and_sit_in_one_letter(letters):
    planted = [(letter, canary) for letter in letters for canary in letter.canaries]
    assert len(planted) == round(0.05 * COUNT)
    assert {canary.kind for _, canary in planted} == set(phrases.CANARY_SENTENCES)
    assert Counter(canary.repetitions for _, canary in planted) == {1: 10, 2: 10, 4: 10}
    for letter, canary in planted:
        assert canary.secret in canary.sentence
        assert letter.text.count(canary.sentence) == letter.text.count(canary.secret) == canary.repetitions
        assert sum(canary.secret in other.text for other in letters) == 1


def test_letters_are_of_letter_length_and_varied(letters):
    ordinary = [letter for letter in letters if not letter.canaries]
    assert all(75 <= len(letter.text.split()) <= 170 for letter in ordinary)
    assert {letter.kind for letter in letters} == set(phrases.OUTLINES)
    assert sum(len(outlines) for outlines in phrases.OUTLINES.values()) >= 10
    openings = Counter(" ".join(letter.text.split("\n\n")[-2].split()[:4]) for letter in letters)
    assert max(openings.values()) < COUNT / 10


def test_ordinary_letters_are_not_near_duplicates_of_each_other(letters):
    units = group_units([TextRecord(letter.text, letter.id, "") for letter in letters])
    assert units.merged == 0
    by_patient = group_units([TextRecord(letter.text, letter.patient, "") for letter in letters])
    assert by_patient.num_units == len({letter.patient for letter in letters})


def test_every_placeholder_is_filled(letters):
    assert not any("{" in letter.text or "}" in letter.text for letter in letters)
    banks = [phrases.HEADERS, phrases.CLOSINGS, *phrases.PURPOSES.values(), *phrases.SENTENCES.values()]
    used = {name for bank in banks for text in bank for _, name, _, _ in string.Formatter().parse(text) if name}
    assert "symptom" in used
    slots = {slot for outlines in phrases.OUTLINES.values() for outline in outlines for slot in outline}
    assert slots == {"purpose", *phrases.SENTENCES}


def test_files_agree_with_the_letters_and_are_read_as_a_corpus(tmp_path):
    path, truth = tmp_path / "letters.jsonl", tmp_path / "truth.jsonl"
    letters = write_letters(path, 40, seed=3, truth_path=truth)
    corpus = read_corpus(path, unit_key="patient")
    assert [(record.text, record.unit) for record in corpus.records] == [(each.text, each.patient) for each in letters]
    rows = [json.loads(line) for line in truth.read_text().splitlines()]
    assert [row["id"] for row in rows] == [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert set(rows[0]) == {"id", "patient", "kind", "personal", "canaries"}
    assert [len(row["canaries"]) for row in rows] == [len(each.canaries) for each in letters]
    assert sum(len(row["canaries"]) for row in rows) == 2


def test_existing_files_are_kept(tmp_path):
    path, truth = tmp_path / "letters.jsonl", tmp_path / "truth.jsonl"
    truth.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"truth\.jsonl"):
        write_letters(path, 2, seed=0, truth_path=truth)
    assert truth.read_text() == "mine"
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"count": 0}, "count"),
        ({"seed": -1}, "seed"),
        ({"canary_fraction": 1.1}, "canary_fraction"),
        ({"canary_fraction": float("nan")}, "canary_fraction"),
    ],
)
def test_arguments_outside_their_range_are_refused(arguments, name):
    with pytest.raises(InvalidValueError, match=name):
        generate_letters(**{"count": 3, "seed": 0, **arguments})


def test_missing_faker_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "faker", None)
    with pytest.raises(ReticentError, match=r'pip install "reticent\[demo\]"'):
        generate_letters(3, seed=0)
