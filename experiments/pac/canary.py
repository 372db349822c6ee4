"""Repetition of canaries that worlds were made to learn by heart, and what it tells about the realised world."""

import sys

from experiments.pac.common import Experiment, run_script
from experiments.pac.planted import Planted
from experiments.pac.results import Findings
from experiments.studies.canary import CanaryStudy, CanaryStudySettings, canary_study
from reticent.decoding.votes import Decoder
from reticent.reports.evaluation import budget_text, cell
from reticent.reports.model import IntervalChart, Table
from reticent.stats.estimate import Estimate

BUDGETS = (2.0**-4, 2.0**-8, 2.0**-16, 2.0**-24, 2.0**-32)
LEARNT = 0.5
"""Below this share of worlds that hold a canary and know it by heart, memorisation was not forced."""


def measure(experiment: Experiment) -> Findings:
    """Emission of planted canaries by every way of choosing tokens, with either decoder."""
    planted = Planted(experiment)
    settings = CanaryStudySettings(
        budgets=BUDGETS, num_deployments=planted.sizes.num_deployments, seed=experiment.settings.seed
    )
    studies = [canary_study(planted.canary_votes, decoder, planted.canary_texts, settings) for decoder in Decoder]
    return Findings(
        title="Canaries: emission, and what it tells about the realised world",
        results={"sizes": vars(planted.sizes), "studies": studies},
        blocks=(*(_table(study) for study in studies), _chart(studies[0])),
        warnings=_warnings(studies[0]),
    )


def _table(study: CanaryStudy) -> Table:
    return Table(
        name=f"canary-{study.decoder.value}",
        title=f"Emission of canaries, {study.decoder.value} votes",
        columns=(
            "Method", "Nats a token", "Tokens, world holds it", "Tokens, world does not", "Whole, world holds it",
            "Whole, world does not", "Advantage (whole)", "Advantage (tokens)", "Whole, any world", "Never planted",
        ),
        rows=tuple(
            (
                row.method,
                budget_text(row.step_budget),
                *(
                    ("no realised world",) * 6
                    if row.membership is None
                    else (
                        cell(row.membership.tokens_with),
                        cell(row.membership.tokens_without),
                        row.membership.whole_with,
                        row.membership.whole_without,
                        row.membership.advantage,
                        row.membership.token_advantage,
                    )
                ),
                row.extraction,
                "none asked for" if row.never_planted is None else row.never_planted,
            )
            for row in study.rows
        ),
        note=f"{study.num_canaries} planted canaries, {study.num_prompts} answers each with different coins, "
        f"{study.num_deployments} deployments an answer. Greedily, {study.learnt_with:.0%} of the worlds that hold a "
        f"canary know it by heart, and {study.learnt_without:.0%} of the others. Advantage: rate of worlds that hold "
        "it less rate of those that do not. Intervals: 95 %, over deployments, for these canaries and coins.",
    )  # fmt: skip


def _chart(study: CanaryStudy) -> IntervalChart:
    rows: list[tuple[str, Estimate]] = []
    for row in study.rows:
        if row.membership is not None:
            name = row.method if row.step_budget is None else f"{row.method} {budget_text(row.step_budget)}"
            rows.append((name, row.membership.token_advantage))
    return IntervalChart(
        title=f"Membership advantage of emission, {study.decoder.value} votes",
        description="Share of a canary's tokens emitted where the realised world holds it, less where it does not",
        x_label="advantage",
        rows=tuple(rows),
        reference=0.0,
    )


def _warnings(study: CanaryStudy) -> tuple[str, ...]:
    if study.learnt_with >= LEARNT:
        return ()
    return (
        f"only {study.learnt_with:.0%} of the worlds that hold a canary know it by heart: memorisation was not forced, "
        "and rates of emission say little",
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("canary", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
