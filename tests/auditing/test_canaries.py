"""Canaries: pairs of twins, coins, places, candidates, and files that are the same for the same seed."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from reticent.auditing.canaries.planting import (
    ALPHABETS,
    CANARIES_NAME,
    PLANTED_NAME,
    PLANTING_NAME,
    Canary,
    CanaryKind,
    candidates,
    draw_canaries,
    num_candidates,
    plant,
    read_canaries,
)
from reticent.errors import AuditError, InvalidValueError, OutputExistsError
from reticent.text.corpus import TextRecord, read_corpus

RECORDS = [TextRecord(f"record number {i}", f"owner {i // 2}", f"corpus:{i}") for i in range(40)]


def small_canary(pattern="{digit}{digit}", secret="42", member=True):
    return Canary(
        id="x", pair=0, kind=CanaryKind.DIGITS, text=f"the code is {secret}", prefix="the code is", secret=secret,
        pattern=pattern, repetitions=1, member=member,
    )  # fmt: skip


@pytest.mark.parametrize("kind", list(CanaryKind))
def test_each_pair_has_one_planted_and_one_held_out_twin_of_equal_repetitions(kind):
    canaries = draw_canaries(kind, 7, (1, 4), seed=3)
    assert len(canaries) == 14
    for pair in range(7):
        twins = [canary for canary in canaries if canary.pair == pair]
        assert sorted(canary.member for canary in twins) == [False, True]
        assert {canary.repetitions for canary in twins} == {(1, 4)[pair % 2]}
        assert {canary.pattern for canary in twins} == {twins[0].pattern}
    assert len({canary.prefix for canary in canaries}) == 14
    assert len({canary.id for canary in canaries}) == 14


def test_the_coin_is_fair_and_does_not_follow_the_order_of_twins():
    canaries = draw_canaries(CanaryKind.DIGITS, 2000, (1,), seed=0)
    firsts = [canary.member for canary in canaries[::2]]
    assert binomtest(sum(firsts), len(firsts)).pvalue > 1e-4
    # Independent coins change side about every second time.
    changes = sum(a != b for a, b in pairwise(firsts))
    assert binomtest(changes, len(firsts) - 1).pvalue > 1e-4


def test_digits_of_secrets_are_uniform():
    secrets = "".join(canary.secret for canary in draw_canaries(CanaryKind.DIGITS, 1000, (1,), seed=1))
    assert chisquare([secrets.count(digit) for digit in "0123456789"]).pvalue > 1e-4


def test_candidates_number_the_fillings_of_the_pattern():
    assert num_candidates("{digit}" * 9) == 10**9
    assert num_candidates("{word}-{digit}") == 10 * len(ALPHABETS["word"])
    for alphabet in ALPHABETS.values():
        assert len(set(alphabet)) == len(alphabet)


def test_a_small_space_is_enumerated_without_the_secret_itself():
    found = candidates(small_canary(), 1000, np.random.default_rng(0))
    assert sorted(found) == [f"{i:02d}" for i in range(100) if i != 42]


def test_a_large_space_is_sampled_without_repeats_and_without_the_secret():
    canary = draw_canaries(CanaryKind.SECRETS, 1, (1,), seed=0)[0]
    found = candidates(canary, 1000, np.random.default_rng(0))
    assert len(set(found)) == 1000
    assert canary.secret not in found
    assert all(re.fullmatch(r"[a-z]+-[a-z]+-\d{3}", secret) for secret in found)


def test_planted_corpus_keeps_the_records_in_order_and_holds_each_member_as_often_as_it_says(tmp_path):
    canaries = draw_canaries(CanaryKind.DIGITS, 4, (1, 3), seed=5)
    plant(RECORDS, canaries, tmp_path / "out", seed=5, keep_units=True)
    rows = [json.loads(line) for line in (tmp_path / "out" / PLANTED_NAME).read_text().splitlines()]
    assert [row["text"] for row in rows if row["canary"] is None] == [record.text for record in RECORDS]
    for canary in canaries:
        copies = [row for row in rows if row["text"] == canary.text]
        assert len(copies) == (canary.repetitions if canary.member else 0)
        assert {row["canary"] for row in copies} <= {canary.id}
        assert len({row["unit"] for row in copies}) <= 1
    planting = json.loads((tmp_path / "out" / PLANTING_NAME).read_text())
    assert (planting["num_planted"], planting["num_held_out"], planting["num_copies"]) == (4, 4, 8)
    assert read_canaries(tmp_path / "out" / CANARIES_NAME) == canaries
    assert len(read_corpus(tmp_path / "out" / PLANTED_NAME, unit_key="unit").records) == 48


def test_places_of_canaries_are_uniform(tmp_path):
    halves = [0, 0]
    for seed in range(60):
        out = tmp_path / str(seed)
        plant(RECORDS[:20], draw_canaries(CanaryKind.DIGITS, 4, (1,), seed), out, seed=seed)
        for place, line in enumerate((out / PLANTED_NAME).read_text().splitlines()):
            halves[place >= 12] += json.loads(line)["canary"] is not None
    assert binomtest(halves[0], sum(halves)).pvalue > 1e-4


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        plant(RECORDS, draw_canaries(CanaryKind.OOD, 3, (1, 2), 9), tmp_path / name, seed=9)
    for name in (PLANTED_NAME, CANARIES_NAME, PLANTING_NAME):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_folder_that_exists_is_left_alone(tmp_path):
    with pytest.raises(OutputExistsError):
        plant(RECORDS, draw_canaries(CanaryKind.OOD, 1, (1,), 0), tmp_path, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_planting_a_canary_twice_is_refused(tmp_path):
    canaries = draw_canaries(CanaryKind.DIGITS, 1, (1,), 0)
    with pytest.raises(AuditError, match=r"digits-0000. is in the corpus already"):
        plant([TextRecord(canaries[0].text, "0", "x:1")], canaries, tmp_path / "out", seed=0)


@pytest.mark.parametrize(("count", "repetitions"), [(0, (1,)), (1, (0,)), (1, ()), (1, (1, 2))])
def test_numbers_that_cannot_be_planted_are_refused(count, repetitions):
    with pytest.raises(InvalidValueError):
        draw_canaries(CanaryKind.DIGITS, count, repetitions, 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no canaries"),
        (b"\xff\xfe", "UnicodeDecodeError"),
        (b"not json\n", ":1: not a canary"),
        (b'{"id": "x", "prefix": "private prefix"}\n', ":1: not a canary"),
    ],
)
def test_a_damaged_canary_file_is_refused_without_quoting_it(tmp_path, content, words):
    path = tmp_path / CANARIES_NAME
    path.write_bytes(content)
    with pytest.raises(AuditError, match=words) as caught:
        read_canaries(path)
    assert "private" not in str(caught.value)


def test_a_secret_that_does_not_fit_its_pattern_is_refused_without_quoting_it(tmp_path):
    path = tmp_path / CANARIES_NAME
    path.write_text(small_canary().model_dump_json().replace("42", "4x") + "\n")
    with pytest.raises(AuditError) as caught:
        read_canaries(path)
    assert "4x" not in str(caught.value)


def test_repeated_canaries_are_refused(tmp_path):
    path = tmp_path / CANARIES_NAME
    path.write_text((small_canary().model_dump_json() + "\n") * 2)
    with pytest.raises(AuditError, match="ids of canaries repeat"):
        read_canaries(path)
