"""Next-token accuracy and the share of the fine-tuning gain that is kept, for every budget, mechanism and control."""

import sys

from experiments.pac.common import Experiment, run_script
from experiments.pac.results import Findings
from reticent.decoding.votes import Decoder
from reticent.evaluation.fidelity import Fidelity, fidelity
from reticent.evaluation.utility import Utility, UtilityRow, UtilitySettings, utility
from reticent.evaluation.verdict import verdict_warnings
from reticent.reports.evaluation import budget_text, cell, utility_table
from reticent.reports.model import Block, LineChart, Series, Table
from reticent.stats.means import Mean


def measure(experiment: Experiment) -> Findings:
    """Utility of both decoders, and how far each decoder's tokens are from the worlds' own mixture."""
    settings = experiment.settings
    wanted = UtilitySettings(settings.budgets, num_sessions=settings.num_draws, seed=settings.seed)
    blocks: list[Block] = []
    found: list[Utility] = []
    for decoder in Decoder:
        experiment.progress.note(f"utility of {decoder} votes")
        found.append(utility(experiment.votes, decoder, wanted))
        blocks += [utility_table(found[-1]), _chart(found[-1])]
    experiment.progress.note("sampling fidelity")
    budgets = (max(settings.budgets), min(settings.budgets))
    distances = fidelity(experiment.votes, settings.votes.temperature, budgets, seed=settings.seed)
    blocks.append(_fidelity_table(distances))
    results = {"utility": found, "fidelity": distances}
    return Findings("Utility and budget", results, tuple(blocks), tuple(verdict_warnings(found)))


def _chart(found: Utility) -> LineChart:
    budgets = [row.step_budget for row in found.rows if row.step_budget is not None]
    ends = (min(budgets), max(budgets))
    methods = dict.fromkeys(row.method for row in found.rows if row.kept is not None)
    series = [_line([row for row in found.rows if row.method == method], ends) for method in methods]
    if not series:
        series = [Series(label="noiseless accuracy", x=ends, y=(found.row("noiseless").accuracy.value,) * 2)]
    return LineChart(
        title=f"Share of the gain kept against budget, {found.decoder} votes",
        description="A line with its band for each release mechanism, level lines for what has no budget",
        x_label="nats a token",
        y_label="share of the gain kept",
        x_scale="log",
        series=tuple(series),
    )


def _line(rows: list[UtilityRow], ends: tuple[float, float]) -> Series:
    kept = [(row.step_budget, row.kept) for row in rows if row.kept is not None]
    if kept[0][0] is None:
        return Series(label=rows[0].method, x=ends, y=(kept[0][1].value,) * 2)
    ordered: list[tuple[float, Mean]] = sorted(
        ((budget or 0.0, mean) for budget, mean in kept), key=lambda point: point[0]
    )
    bands = [mean.interval() or (mean.value, mean.value) for _, mean in ordered]
    return Series(
        label=rows[0].method,
        x=tuple(budget for budget, _ in ordered),
        y=tuple(mean.value for _, mean in ordered),
        low=tuple(low for low, _ in bands),
        high=tuple(high for _, high in bands),
    )


def _fidelity_table(found: Fidelity) -> Table:
    return Table(
        name="fidelity",
        title="Total variation to the noiseless mixture of the worlds, Gumbel votes",
        columns=("Method", "Nats a token", "Total variation"),
        rows=tuple((row.method, budget_text(row.step_budget), cell(row.total_variation)) for row in found.rows),
        note=f"{found.num_draws} draws of coins at each of {found.num_positions:,} positions. The fresh-world draw has "
        "the mixture's own distribution; what its row shows is the noise of that number of draws. "
        "Intervals: 95 %, over texts.",
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("utility", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
