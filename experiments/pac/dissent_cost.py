"""Fit of the accuracy that the Gaussian release loses at a dissenting position, over every run that was measured.

A unanimous position loses nothing, so the loss is noise's at dissenting positions alone: with c lost at each,

    kept = 1 − c · dissent / gain.

c is fitted to the sweep's runs and to those of `utility`, at the smallest budget, by least squares through the origin
with the runs' own standard errors. Reads results that other scripts wrote; measures nothing itself.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments.pac.common import HERE
from experiments.pac.comparisons import SMALLEST
from experiments.pac.results import Findings, ResultHeader, write_findings
from experiments.pac.settings import Size
from reticent.pac.bounds import attack_success
from reticent.reports.evaluation import cell
from reticent.reports.model import Cell, IntervalChart, Paragraph, Table
from reticent.stats.estimate import Estimate
from reticent.stats.means import CONFIDENCE, Mean

_LARGEST_ERROR = 0.02
"""Runs whose loss at a dissenting position has a larger standard error are fitted but not drawn."""
_TOKENS = 1_000_000


@dataclass(frozen=True)
class MeasuredRun:
    """One run under one decoder, at the smallest budget.

    Attributes:
        label: names it.
        num_worlds: m.
        dissent: share of positions on which worlds differ.
        gain: noiseless accuracy less the public model's.
        loss: accuracy that the Gaussian release loses, gain · (1 − kept).
        standard_error: of the loss.
    """

    label: str
    num_worlds: int
    dissent: float
    gain: float
    loss: float
    standard_error: float


@dataclass(frozen=True)
class LossFit:
    """The fitted loss c at a dissenting position.

    Attributes:
        loss_per_dissent: c.
        standard_error: of c, from the runs' own errors.
        chi_square: of the residuals; degrees_of_freedom: the number of runs less one.
        p_value: of so large a chi-square where c is the same in all runs.
    """

    loss_per_dissent: float
    standard_error: float
    chi_square: float
    degrees_of_freedom: int
    p_value: float


def fit_loss(runs: Sequence[MeasuredRun]) -> LossFit:
    """Fit c by weighted least squares through the origin."""
    dissent, loss, error = (
        np.array([getattr(run, name) for run in runs]) for name in ("dissent", "loss", "standard_error")
    )
    information = float((dissent**2 / error**2).sum())
    slope = float((dissent * loss / error**2).sum()) / information
    chi_square = float((((loss - slope * dissent) / error) ** 2).sum())
    freedom = len(runs) - 1
    return LossFit(slope, information**-0.5, chi_square, freedom, float(stats.chi2.sf(chi_square, freedom)))


def runs_of_sweep(results: Mapping[str, Any]) -> Iterator[MeasuredRun]:
    """Runs of a sweep's results, each under both decoders."""
    for row in results["rows"]:
        for decoder, kept in row["kept"].items():
            label = f"sweep, {row['factor']}, rate {row['learning_rate']:g}, rank {row['rank']}, {decoder}"
            yield from _run(label, row["num_worlds"], row["unanimity"][decoder], row["gain"][decoder], kept["gaussian"])


def runs_of_utility(results: Mapping[str, Any], domain: str, num_worlds: int) -> Iterator[MeasuredRun]:
    """The run of utility's results, under both decoders."""
    for found in results["utility"]:
        rows = [row for row in found["rows"] if row["method"] == "gaussian"]
        smallest = min(rows, key=lambda row: row["step_budget"])
        label = f"{domain}, m = {num_worlds}, {found['decoder']}"
        yield from _run(label, num_worlds, found["unanimity"], found["gain"], smallest["kept"])


def _run(
    label: str, num_worlds: int, unanimity: Mapping[str, Any], gain: Mapping[str, Any], kept: Mapping[str, Any] | None
) -> Iterator[MeasuredRun]:
    """The run, unless nothing was gained that could be kept."""
    if kept is not None and kept["standard_error"]:
        value = gain["value"]
        yield MeasuredRun(
            label,
            num_worlds,
            1 - unanimity["value"],
            value,
            (1 - kept["value"]) * value,
            kept["standard_error"] * value,
        )


def read_runs(folder: Path) -> list[MeasuredRun]:
    """Every run that the results in a folder hold."""
    runs: list[MeasuredRun] = []
    for path in sorted(folder.glob("sweep-*.json")):
        runs += runs_of_sweep(json.loads(path.read_text("utf-8"))["results"])
    for path in sorted(folder.glob("utility-*.json")):
        content = json.loads(path.read_text("utf-8"))
        runs += runs_of_utility(content["results"], content["domain"], content["setting"]["num_worlds"])
    return runs


def worlds_table(folder: Path) -> Table:
    """The sweep's runs that differ in the number of worlds alone: dissent, the gain kept, and the bounds."""
    rows: list[tuple[Cell, ...]] = []
    total = _TOKENS * SMALLEST
    for path in sorted(folder.glob("sweep-*.json")):
        found = json.loads(path.read_text("utf-8"))["results"]["rows"]
        alike = [row for row in found if row["factor"] in ("centre", "worlds")]
        for row in sorted(alike, key=lambda row: row["num_worlds"]):
            worlds, kept = row["num_worlds"], row["kept"]["greedy"]
            rows.append(
                (
                    worlds,
                    1 - row["unanimity"]["greedy"]["value"],
                    cell(Mean.model_validate(kept["gaussian"])),
                    cell(Mean.model_validate(kept["mixture"])),
                    attack_success(total, 0.5),
                    attack_success(total, 1 / worlds),
                )
            )
    return Table(
        name="worlds",
        title="More worlds do not tighten the bound on a record's half",
        columns=(
            "m",
            "Dissent",
            "Gaussian keeps",
            "Mixture keeps",
            "Half named right, at most",
            "World named right, at most",
        ),
        rows=tuple(rows),
        note=f"Greedy votes; bounds after {_TOKENS:,} tokens of 2^-32 nats. More worlds lower the prior of naming the "
        "world alone, and let more positions dissent.",
    )


def describe(runs: Sequence[MeasuredRun], fit: LossFit, worlds: Table) -> Findings:
    """The findings: the fitted constant, each run beside it, what a share of the gain allows, and the table of m."""
    quantile = float(stats.norm.ppf(0.5 + 0.5 * CONFIDENCE))
    low, high = (fit.loss_per_dissent + side * quantile * fit.standard_error for side in (-1, 1))
    drawn = [run for run in runs if run.standard_error / run.dissent <= _LARGEST_ERROR]
    chart = IntervalChart(
        title="Accuracy that the Gaussian release loses at a dissenting position",
        description=f"Each run with its 95 % interval; the dotted line is the fitted {fit.loss_per_dissent:.4f}",
        x_label="accuracy lost a dissenting position",
        rows=tuple((run.label, _loss_of(run, quantile)) for run in drawn),
        reference=fit.loss_per_dissent,
    )
    allowed = Table(
        name="allowed-dissent",
        title="The dissent at which the Gaussian keeps a share of the gain, by the fit",
        columns=("Gain", "Keeps 90 %", "Keeps 75 %", "Keeps 50 %"),
        rows=tuple(
            (f"{gain:.3f}", *(min(1.0, (1 - kept) * gain / fit.loss_per_dissent) for kept in (0.9, 0.75, 0.5)))
            for gain in (0.01, 0.02, 0.03, 0.05)
        ),
    )
    text = Paragraph(
        text=f"c = {fit.loss_per_dissent:.4f} [{low:.4f}, {high:.4f}] over {len(runs)} runs; chi-square "
        f"{fit.chi_square:.1f} on {fit.degrees_of_freedom} degrees of freedom (p = {fit.p_value:.2f}). kept = 1 - c "
        "dissent / gain."
    )
    results = {"fit": asdict(fit), "runs": [asdict(run) for run in runs]}
    return Findings("When the Gaussian release works", results, (text, chart, allowed, worlds))


def _loss_of(run: MeasuredRun, quantile: float) -> Estimate:
    value, reach = run.loss / run.dissent, quantile * run.standard_error / run.dissent
    return Estimate(value=value, low=value - reach, high=value + reach, confidence=CONFIDENCE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser("python -m experiments.pac.dissent_cost", description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE, help="folder of the results (default: %(default)s)")
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    runs = read_runs(options.results)
    if len(runs) < 2:
        sys.stderr.write(f"error: {options.results} has no results of sweep or utility; run those first\n")
        return 2
    header = ResultHeader.now(
        name="dissent-cost",
        command=shlex.join(["python", "-m", "experiments.pac.dissent_cost", *arguments]),
        seed=0,
        size=Size.LOCAL.value,
        domain="all",
    )
    for path in write_findings(options.results, header, describe(runs, fit_loss(runs), worlds_table(options.results))):
        sys.stderr.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
