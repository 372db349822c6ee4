"""Utility under the corpus guarantee: by hand, against the release's own weights, and from a run to the report."""

import json
import math

import numpy as np
import pytest
import torch
from tiny_adapters import NUM_WORLDS, random_adapters
from tiny_models import build_tiny_model

import reticent
from reticent.cli.main import main
from reticent.dp.relations import Relation
from reticent.dp.release import Aggregate, CorpusSettings, integer_weights
from reticent.engine.corpus_engine import CorpusEngine
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import InvalidValueError
from reticent.evaluation.corpus_sums import CorpusSums, concatenate_sums, sum_votes
from reticent.evaluation.corpus_utility import corpus_utility, release_log_probabilities
from reticent.layers.forward import batched_decoder

TOKENS = [11, 200, 3, 77, 42, 9, 140, 5]
ALL = np.ones(NUM_WORLDS, dtype=bool)


def settings(gain: float, clip: float = 0.5, worlds: int = NUM_WORLDS, candidates: int = 6) -> CorpusSettings:
    return CorpusSettings(clip, gain, 1.0, candidates, worlds, Relation.REPLACEMENT)


def test_sums_of_a_text_are_those_of_the_engine_that_releases() -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    adapters = random_adapters(decoder, ["attention"], 3, None)
    occupied = np.arange(NUM_WORLDS) != 1
    sums = sum_votes(TeacherForcing(decoder, adapters), TOKENS, 6, 0.5, occupied)
    engine = CorpusEngine(decoder, adapters, occupied)
    context = engine.open(TOKENS[:1])
    for position, token in enumerate(TOKENS[1:]):
        [aggregate] = engine.aggregates([context], settings(1.0))
        assert isinstance(aggregate, Aggregate)
        # Here candidates come by rank, there by token id.
        by_rank = np.argsort(-aggregate.public_logp_K, kind="stable")
        np.testing.assert_allclose(sums.public_logp_NK[position], aggregate.public_logp_K[by_rank], atol=2e-5)
        np.testing.assert_allclose(sums.sum_NK[position] / 2**24, aggregate.sum_K[by_rank] / 2**24, atol=2e-4)
        expected = np.flatnonzero(aggregate.candidates_K[by_rank] == token)
        assert sums.target_N[position] == (expected[0] if expected.size else -1)
        engine.extend([context], [token])
    scored = np.arange(len(TOKENS)) >= 5
    some = sum_votes(TeacherForcing(decoder, adapters), TOKENS, 6, 0.5, occupied, scored)
    assert np.array_equal(some.sum_NK, sums.sum_NK[4:])


HALF, QUARTER = math.log(0.5), math.log(0.25)


def by_hand() -> CorpusSums:
    """Two texts of two and one positions over three candidates; one token of the first is no candidate."""
    public = np.log([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
    full = np.log([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    sums = np.array([[0, 4, 0], [2, 2, 2], [-4, 0, 4]]) * 2**22
    return CorpusSums(np.array([0, 2, 3]), np.array([1, -1, 2]), public, full, sums)


def test_figures_by_hand() -> None:
    constants = CorpusSettings(1.0, 2.0, 1.0, 3, 4, Relation.ADD_REMOVE)
    found = corpus_utility(by_hand(), lambda gain: constants, [2.0], [1.0], 1e-6)
    public, full, released = found.rows
    assert found.candidates_cover == pytest.approx(2 / 3)
    assert public.loss.value == pytest.approx(math.log(4))
    assert public.accuracy.value == pytest.approx((0.25 + 0.25) / 3)
    assert full.loss.value == pytest.approx(math.log(2))
    assert full.kept is not None
    assert full.kept.value == pytest.approx(1.0)
    # kappa D = (2 / 4) (D / 2^24): half a nat for the second candidate of the first position, and so on.
    first = 0.25 * math.exp(0.5) / (0.5 + 0.25 * math.exp(0.5) + 0.25)
    second = 0.25 * math.exp(0.5) / (0.25 * math.exp(-0.5) + 0.5 + 0.25 * math.exp(0.5))
    assert released.accuracy.value == pytest.approx((first + second) / 3)
    assert released.loss.value == pytest.approx(-(math.log(first) + math.log(second)) / 2)
    assert released.kept is not None
    gain = math.log(4) - released.loss.value
    assert released.kept.value == pytest.approx(gain / math.log(2))
    assert (released.w, released.gain) == (2.0, 2.0)
    assert released.rho_per_token == pytest.approx((2.0 / 4) ** 2 / 2)


def test_a_release_is_measured_as_it_is_drawn() -> None:
    sums, constants = by_hand(), CorpusSettings(1.0, 3.0, 0.8, 3, 4, Relation.REPLACEMENT)
    found = np.exp(release_log_probabilities(sums, constants))
    for position in range(3):
        aggregate = Aggregate(np.arange(3), sums.public_logp_NK[position], sums.sum_NK[position])
        weights = integer_weights(aggregate, constants)
        np.testing.assert_allclose(found[position], np.array([w / sum(weights) for w in weights]), rtol=1e-9)


def test_texts_are_joined_in_order(tmp_path) -> None:
    whole = concatenate_sums([by_hand(), by_hand()])
    assert whole.offsets.tolist() == [0, 3, 6]
    by_hand().save(tmp_path / "one.npz")
    again = CorpusSums.load(tmp_path / "one.npz")
    assert np.array_equal(again.sum_NK, by_hand().sum_NK)


@pytest.fixture(scope="module")
def placed_run(tiny_llama_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus-evaluation")
    rows = [f"a letter about {word} and {word}" for word in ("rain", "bread", "stone", "salt")]
    torch.manual_seed(0)
    reticent.build_worlds(
        rows,
        out=folder / "run",
        model=tiny_llama_folder,
        worlds=5,
        options=reticent.BuildOptions(guarantee="corpus", places=1, max_tokens=24, adapt_layers="top:1"),
    )
    (folder / "test.jsonl").write_text("".join(json.dumps({"text": f"a note on {w}"}) + "\n" for w in ("tea", "ice")))
    return folder


def test_evaluate_knows_the_kind_of_run(placed_run, tmp_path, capsys) -> None:
    command = ["evaluate", str(placed_run / "run"), "--test", str(placed_run / "test.jsonl"), "--out"]
    options = ["--candidates", "200", "--gains", "1,2", "--epsilons", "2"]
    assert main([*command, str(tmp_path / "out"), *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in found["utility"]["rows"]] == ["public", "full-data", "released", "released"]
    assert [row["w"] for row in found["utility"]["rows"]] == [None, None, 0.5, 1.0]
    one, two = (row["tokens"]["2"] for row in found["utility"]["rows"][2:])
    assert one == pytest.approx(4 * two, abs=4)
    assert (tmp_path / "out" / "report.html").is_file()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "sums").iterdir()}
    assert main([*command, str(tmp_path / "out"), *options]) == 0
    assert "the operator's" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "sums").iterdir()} == stamps
    assert main([*command, str(tmp_path / "out"), "--candidates", "201"]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_candidates_that_hold_no_token_of_the_texts_are_an_error() -> None:
    none = CorpusSums(np.array([0, 1]), np.array([-1]), np.zeros((1, 3)), np.zeros((1, 0)), np.zeros((1, 3), np.int64))
    with pytest.raises(InvalidValueError, match="raise --candidates"):
        corpus_utility(none, lambda gain: settings(gain, candidates=3), [1.0], [1.0], 1e-6)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--gains", "a", "must be numbers"), ("--clip", "0", "clip must be"), ("--delta", "0.5", "below one over"),
     ("--epsilons", "-1", "epsilons must be")],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(placed_run, tmp_path, capsys, option, value, message) -> None:
    command = ["evaluate", str(placed_run / "run"), "--test", str(placed_run / "test.jsonl")]
    assert main([*command, "--out", str(tmp_path / "out"), option, value]) == 2
    assert message in capsys.readouterr().err
