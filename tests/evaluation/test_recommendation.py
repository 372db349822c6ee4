"""The recommended mechanism on utilities whose answer is known."""

import json

import pytest

from experiments.pac.common import HERE
from reticent.decoding.votes import Decoder
from reticent.evaluation.recommendation import LOSS_PER_DISSENT, recommend
from reticent.evaluation.utility import Utility, UtilityRow
from reticent.pac.mechanism import ReleaseMechanism
from reticent.stats.means import Mean


def mean(value, error=0.01):
    return Mean(value=value, standard_error=error, num_samples=64)


def utility_with(shares, gain=0.02, unanimity=0.8, error=0.01):
    rows = [
        UtilityRow(method=method, step_budget=budget, accuracy=mean(0.4), kept=mean(share, error))
        for method, share in shares.items()
        for budget, share in ((2.0**-4, 1.0), (2.0**-32, share))
    ]
    return Utility(
        decoder=Decoder.GREEDY, rows=tuple(rows), gain=mean(gain), unanimity=mean(unanimity), in_candidates=mean(0.9),
        num_sessions=8,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gaussian", "mixture", "error", "chosen"),
    [
        (0.7, 0.99, 0.01, ReleaseMechanism.MIXTURE),
        (1.1, 0.99, 0.01, ReleaseMechanism.GAUSSIAN),
        (0.95, 0.99, 0.05, ReleaseMechanism.GAUSSIAN),  # within sampling error: the default
    ],
)
def test_the_mechanism_that_clearly_keeps_more_at_the_smallest_budget_is_chosen(gaussian, mixture, error, chosen):
    found = recommend(utility_with({"gaussian": gaussian, "mixture": mixture}, error=error))
    assert found.mechanism is chosen
    assert ("either will do" in found.reason) == (error > 0.02)
    assert f"{mixture:.0%}" in found.reason
    assert f"{gaussian:.0%}" in found.reason


def test_the_share_that_dissent_allows_is_worked_by_hand():
    found = recommend(utility_with({"gaussian": 0.9, "mixture": 0.9}, gain=0.0246, unanimity=0.8))
    assert found.expected_gaussian_share == pytest.approx(1 - 0.0123 * 0.2 / 0.0246)
    assert found.largest_dissent == pytest.approx(0.1 * 0.0246 / 0.0123)


def test_nothing_is_recommended_without_a_gain_or_a_mechanism():
    assert recommend(utility_with({"gaussian": 0.9}, gain=-0.01)) is None
    assert recommend(utility_with({})) is None


def test_one_mechanism_alone_is_said_to_be_alone():
    assert "no other mechanism was measured" in recommend(utility_with({"mixture": 0.9})).reason


def test_the_loss_at_a_dissenting_position_is_the_committed_fits():
    fit = json.loads((HERE / "dissent-cost-all.json").read_text("utf-8"))["results"]["fit"]
    assert fit["loss_per_dissent"] == pytest.approx(LOSS_PER_DISSENT, abs=5e-5)
