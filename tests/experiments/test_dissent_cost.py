"""The fitted loss at a dissenting position, against runs made from a known one, and against SciPy."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import curve_fit

from experiments.pac.common import HERE
from experiments.pac.dissent_cost import MeasuredRun, fit_loss, main, read_runs


def runs_with(loss, noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    errors = generator.uniform(0.0005, 0.004, 30)
    dissents = generator.uniform(0.03, 0.35, 30)
    return [
        MeasuredRun(f"{number}", 16, d, 0.02, loss * d + noise * e * generator.standard_normal(), e)
        for number, (d, e) in enumerate(zip(dissents, errors, strict=True))
    ]


def test_a_known_loss_is_found_exactly_without_noise():
    assert fit_loss(runs_with(0.017)).loss_per_dissent == pytest.approx(0.017, rel=1e-12)


def test_the_fit_is_scipys():
    runs = runs_with(0.017, noise=1.0)
    x, y, e = (np.array([getattr(run, name) for run in runs]) for name in ("dissent", "loss", "standard_error"))
    [slope], [[variance]] = curve_fit(lambda d, c: c * d, x, y, sigma=e, absolute_sigma=True)
    found = fit_loss(runs)
    assert found.loss_per_dissent == pytest.approx(slope, rel=1e-6)
    assert found.standard_error == pytest.approx(variance**0.5, rel=1e-6)
    assert found.chi_square == pytest.approx((((y - slope * x) / e) ** 2).sum(), rel=1e-6)


def test_a_loss_that_differs_between_runs_is_refuted():
    assert fit_loss(runs_with(0.017, 1.0)).p_value > 1e-3
    assert fit_loss([*runs_with(0.01, 1.0), *runs_with(0.04, 1.0, seed=1)]).p_value < 1e-6


def test_the_committed_result_is_that_of_the_committed_runs():
    committed = json.loads((HERE / "dissent-cost-all.json").read_text("utf-8"))["results"]["fit"]
    found = fit_loss(read_runs(HERE))
    assert found.loss_per_dissent == pytest.approx(committed["loss_per_dissent"], rel=1e-9)
    assert found.standard_error == pytest.approx(committed["standard_error"], rel=1e-9)


def test_without_results_it_says_what_to_run(tmp_path: Path, capsys):
    assert main(["--results", str(tmp_path)]) == 2
    assert "run those first" in capsys.readouterr().err
