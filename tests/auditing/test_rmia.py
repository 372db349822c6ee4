"""RMIA's scaling: chosen on shadow models alone, and an attack that is no longer the likelihood attack."""

import numpy as np
import pytest
from fake_targets import Notes, WordScorer, fake_target
from scipy.stats import spearmanr
from signals_by_hand import signals
from test_audit_run import MEMBERS, NONMEMBERS, request

from reticent.auditing.attacks.evidence import TextEvidence
from reticent.auditing.attacks.registry import ATTACKS, AttackName
from reticent.auditing.attacks.rmia import A_GRID, log_probability_ratio, tune_offline_scaling
from reticent.auditing.inputs.shadows import ShadowTable, shadow_evidence
from reticent.auditing.run import run_audit
from reticent.stats.roc import auc
from reticent.text.corpus import text_hash

HASHES = tuple(f"text {number}" for number in range(400))


def simulated_models(num_models, seed):
    """Mean ℓ of texts that differ in difficulty by .4 nats, where a model gains .15 ± .05 on its own half of them."""
    rng = np.random.default_rng(seed)
    difficulty_N1 = rng.normal(-3.0, 0.4, size=(len(HASHES), 1))
    members_NM = rng.permuted(np.tile(np.arange(len(HASHES))[:, None] % 2 == 0, num_models), axis=0)
    noise_NM = rng.normal(0.0, 0.05, size=members_NM.shape)
    return difficulty_N1 + noise_NM + 0.15 * members_NM, members_NM


def areas_and_ranks(means_NM, members_NM, base_N=None):
    """AUC of RMIA on the first model, and its rank correlation with the likelihood."""
    if base_N is None:
        table = ShadowTable(HASHES, means_NM[:, 1:], members_NM[:, 1:], "simulated")
    else:
        table = ShadowTable(HASHES, base_N[:, None], np.zeros((len(HASHES), 1), dtype=bool), "the base")
    likelihood = means_NM[:, 0]
    scaling = tune_offline_scaling(table.means_NK, table.members_NK)
    nonmembers = [key for key, member in zip(HASHES, members_NM[:, 0], strict=True) if not member]
    found = shadow_evidence(table, dict(zip(HASHES, likelihood, strict=True)), nonmembers, scaling.a)
    usable = np.array([len(found[key].out_means) > 0 for key in HASHES])
    assert usable.mean() > 0.95
    scores = np.array(
        [
            ATTACKS[AttackName.RMIA].score(TextEvidence(target=signals([value]), shadows=found[key]))
            for key, value in zip(np.array(HASHES)[usable], likelihood[usable], strict=True)
        ]
    )
    members, likelihood = members_NM[usable, 0], likelihood[usable]
    assert auc(likelihood[members], likelihood[~members]) < 0.65
    return auc(scores[members], scores[~members]), spearmanr(scores, likelihood).statistic


def test_with_shadow_models_it_is_not_the_likelihood_attack():
    area, correlation = areas_and_ranks(*simulated_models(9, seed=0))
    assert area > 0.95
    assert abs(correlation) < 0.5


def test_with_the_base_alone_it_is_not_the_likelihood_attack():
    means_NM, members_NM = simulated_models(1, seed=1)
    rng = np.random.default_rng(2)
    base_N = means_NM[:, 0] - 0.15 * members_NM[:, 0] - 0.3 + rng.normal(0, 0.03, len(HASHES))
    area, correlation = areas_and_ranks(means_NM, members_NM, base_N)
    assert area > 0.95
    assert abs(correlation) < 0.5


def test_where_models_without_the_text_say_something_they_are_trusted():
    means_NM, members_NM = simulated_models(8, seed=3)
    scaling = tune_offline_scaling(means_NM, members_NM)
    assert scaling.num_models == 8
    assert scaling.a >= 0.99


def test_where_models_without_the_text_say_nothing_they_are_not_trusted():
    """Texts are alike but for the gain of members, and one of two models says nothing but noise."""
    rng = np.random.default_rng(4)
    members_NK = rng.random((400, 2)) < 0.5
    means_NK = -3.0 + 0.3 * members_NK + rng.normal(0.0, [0.05, 2.0], size=(400, 2))
    assert tune_offline_scaling(means_NK, members_NK).a < 0.99


def test_the_scaling_is_the_one_that_serves_the_paired_models_best_by_hand():
    """Two models, each attacked with the other: only the areas of the log-ratios count."""
    means_NK = np.log([[0.30, 0.10], [0.20, 0.19], [0.05, 0.20], [0.10, 0.12], [0.12, 0.04]])
    members_NK = np.array([[True, False], [False, False], [False, True], [False, False], [False, False]])

    def mean_area(a):
        areas = []
        for model, other in ((0, 1), (1, 0)):
            rows = [row for row in range(5) if not members_NK[row, other]]
            ratio = {row: log_probability_ratio(means_NK[row, model], means_NK[row, [other]], a) for row in rows}
            inside = [ratio[row] for row in rows if members_NK[row, model]]
            areas.append(auc(inside, [ratio[row] for row in rows if not members_NK[row, model]]))
        return np.mean(areas)

    areas = [mean_area(a) for a in A_GRID]
    assert len(set(areas)) > 1
    found = tune_offline_scaling(means_NK, members_NK)
    assert (found.a, found.num_models) == (A_GRID[int(np.argmax(areas))], 2)


@pytest.mark.parametrize(
    ("means_NK", "members_NK"),
    [
        (np.full((3, 1), -2.0), np.zeros((3, 1), dtype=bool)),
        (np.full((3, 1), -2.0), np.array([[True], [False], [True]])),
        (np.full((3, 2), np.nan), np.array([[True, False], [False, True], [True, True]])),
        (np.zeros((0, 3)), np.zeros((0, 3), dtype=bool)),
    ],
)
def test_without_a_model_to_tune_on_the_base_is_taken_as_it_is(means_NK, members_NK):
    found = tune_offline_scaling(means_NK, members_NK)
    assert (found.a, found.num_models) == (1.0, 0)


def test_a_single_shadow_model_is_attacked_with_the_reference(tmp_path):
    """The reference says nothing but noise, so that it is not trusted; with the shadow model alone a = 1 would stay."""
    rng = np.random.default_rng(5)
    reference = WordScorer("r")
    base = {text_hash(text): float(reference.signals(text).logp.mean()) for text in (*MEMBERS, *NONMEMBERS)}

    def shadow_table(texts):
        hashes = tuple(map(text_hash, texts))
        members_N1 = rng.random((len(hashes), 1)) < 0.5
        means_N1 = -3.0 + 0.3 * members_N1 + rng.normal(0.0, 0.05, members_N1.shape)
        kept.append((hashes, means_N1, members_N1))
        return ShadowTable(hashes, means_N1, members_N1, "one model")

    kept = []
    target = fake_target(WordScorer("t"), reference, shadow_table=shadow_table)
    result = run_audit(request(tmp_path, target, "rmia"), Notes())
    ((hashes, means_N1, members_N1),) = kept
    areas = []
    for a in A_GRID:
        pairs = zip(hashes, means_N1[:, 0], strict=True)
        ratios = np.array([log_probability_ratio(mean, np.array([base[key]]), a) for key, mean in pairs])
        areas.append(auc(ratios[members_N1[:, 0]], ratios[~members_N1[:, 0]]))
    best = A_GRID[int(np.argmax(areas))]
    assert best < 0.99
    assert f"a = {best:g}: tuned on 1 shadow model" in result.scoring["rmia"]
    alone = fake_target(WordScorer("t"), None, shadow_table=shadow_table)
    assert "a = 1: there being no model" in run_audit(request(tmp_path / "b", alone, "rmia"), Notes()).scoring["rmia"]
