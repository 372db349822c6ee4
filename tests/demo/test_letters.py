"""The synthetic letters: deterministic, in one style, with a ground truth that the texts bear out."""

import json
import re
import string
import sys
from collections import Counter, defaultdict

import pytest

from reticent.demo import phrases
from reticent.demo.letters import generate_letters, read_letters, write_letters
from reticent.errors import CorpusError, InvalidValueError, OutputExistsError, ReticentError
from reticent.text.corpus import TextRecord, group_units, read_corpus

pytest.importorskip("faker")

COUNT, PLANTED = 600, 20


@pytest.fixture(scope="module")
def letters():
    return generate_letters(COUNT, seed=1, planted=PLANTED)


def test_letters_are_a_pure_function_of_their_arguments(letters):
    assert generate_letters(COUNT, seed=1, planted=PLANTED) == letters
    other = generate_letters(COUNT, seed=2, planted=PLANTED)
    assert not {letter.text for letter in other} & {letter.text for letter in letters}


def test_ids_are_unique_and_patients_have_two_letters_but_for_the_one_with_the_secret(letters):
    assert len({letter.id for letter in letters}) == COUNT
    per_patient = Counter(letter.patient for letter in letters)
    assert Counter(per_patient.values()) == {2: (COUNT - PLANTED) // 2, PLANTED: 1}
    kinds = defaultdict(set)
    for letter in letters:
        kinds[letter.patient].add(letter.kind)
    assert set(map(frozenset, kinds.values())) == {frozenset(phrases.BODIES), frozenset({phrases.NOTE})}


def test_personal_data_stand_verbatim_in_their_letter(letters):
    for letter in letters:
        kinds = {item.kind for item in letter.personal}
        assert {"name"} | (set() if letter.canaries else {"year_of_birth", "medication"}) <= kinds
        assert all(item.value in letter.text for item in letter.personal)
    seen = Counter(item.kind for letter in letters for item in letter.personal)
    assert seen["diagnosis"] > COUNT / 3


def test_no_diagnosis_medication_or_year_of_birth_is_left_out_of_the_ground_truth(letters):
    medications = {clinic.medication for clinic in phrases.CLINICS}
    for letter in letters:
        stated = {item.value for item in letter.personal}
        diagnoses = {clinic.diagnosis for clinic in phrases.CLINICS if f"has {clinic.diagnosis}" in letter.text}
        assert diagnoses | {each for each in medications if each in letter.text} <= stated
        assert set(re.findall(r"born (\d{4})", letter.text)) <= stated


def test_the_secret_is_one_patients_note_filed_as_often_as_stated(letters):
    planted = [letter for letter in letters if letter.canaries]
    assert len(planted) == PLANTED
    assert len({letter.patient for letter in planted}) == 1
    (canary,) = {canary for letter in planted for canary in letter.canaries}
    assert canary.repetitions == PLANTED
    assert re.fullmatch(r"\d{4} \d{4}", canary.secret)
    assert {letter.text for letter in planted} == {f"{canary.prefix} {canary.secret}."}
    assert sum(canary.secret in letter.text for letter in letters) == PLANTED
    assert not any(letter.canaries for letter in generate_letters(20, seed=1))


def test_letters_are_short_whole_and_in_the_house_style(letters):
    closings = tuple(f"Yours sincerely,\n{clinic.consultant}" for clinic in phrases.CLINICS)
    ordinary = [letter for letter in letters if not letter.canaries]
    for letter in ordinary:
        assert letter.text.startswith("Dear Dr ")
        assert letter.text.endswith(closings)
    assert all(25 <= len(letter.text.split()) <= 55 for letter in ordinary)


def test_letters_of_different_patients_are_not_near_duplicates(letters):
    units = group_units([TextRecord(letter.text, letter.patient, "") for letter in letters])
    assert units.merged == 0
    assert units.num_units == len({letter.patient for letter in letters})


def test_every_placeholder_is_filled(letters):
    assert not any("{" in letter.text or "}" in letter.text for letter in letters)
    templates = [phrases.OPENING, phrases.NOTE_PREFIX, *phrases.BODIES.values(), phrases.CLOSING]
    used = {name for text in templates for _, name, _, _ in string.Formatter().parse(text) if name}
    assert {"symptom", "medication", "birth"} <= used


def test_files_agree_with_the_letters_and_are_read_as_a_corpus(tmp_path):
    path, truth = tmp_path / "letters.jsonl", tmp_path / "truth.jsonl"
    letters = write_letters(path, 40, seed=3, truth_path=truth, planted=4)
    corpus = read_corpus(path, unit_key="patient")
    assert [(record.text, record.unit) for record in corpus.records] == [(each.text, each.patient) for each in letters]
    rows = [json.loads(line) for line in truth.read_text().splitlines()]
    assert [row["id"] for row in rows] == [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert set(rows[0]) == {"id", "patient", "kind", "personal", "canaries"}
    assert read_letters(path, truth) == letters


def test_existing_files_are_kept(tmp_path):
    path, truth = tmp_path / "letters.jsonl", tmp_path / "truth.jsonl"
    truth.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"truth\.jsonl"):
        write_letters(path, 2, seed=0, truth_path=truth)
    assert truth.read_text() == "mine"
    assert not path.exists()


def test_files_that_are_no_letters_are_named(tmp_path):
    path, truth = tmp_path / "letters.jsonl", tmp_path / "truth.jsonl"
    write_letters(path, 4, seed=0, truth_path=truth)
    truth.write_text("\n".join(truth.read_text().splitlines()[:3]))
    with pytest.raises(CorpusError, match=r"truth\.jsonl are not letters with their ground truth"):
        read_letters(path, truth)
    with pytest.raises(CorpusError, match="absent"):
        read_letters(tmp_path / "absent", truth)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"count": 0}, "count"), ({"seed": -1}, "seed"), ({"planted": -1}, "planted"), ({"planted": 4}, "planted")],
)
def test_arguments_outside_their_range_are_refused(arguments, name):
    with pytest.raises(InvalidValueError, match=name):
        generate_letters(**{"count": 3, "seed": 0, **arguments})


def test_missing_faker_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "faker", None)
    with pytest.raises(ReticentError, match=r'pip install "reticent\[demo\]"'):
        generate_letters(3, seed=0)
