"""Agreement of all worlds, and the share of their probability that the public model's candidates hold."""

import sys

from experiments.pac.common import Experiment, run_script
from experiments.pac.results import Findings
from reticent.evaluation.stability import Stability, stability
from reticent.reports.evaluation import cell
from reticent.reports.model import LineChart, Series, Table


def measure(experiment: Experiment) -> Findings:
    """Stability of the shared run on test texts."""
    found = stability(experiment.votes)
    return Findings("Stability: how often all worlds agree", {"stability": found}, (_table(found), _chart(found)))


def _table(found: Stability) -> Table:
    return Table(
        name="stability",
        title="Unanimous positions, and the worlds' probability inside the candidates",
        columns=("Candidates k", "Unanimous, greedy", "Unanimous, Gumbel", "Probability inside"),
        rows=tuple((row.num_candidates, cell(row.greedy), cell(row.gumbel), cell(row.mass)) for row in found.rows),
        note=f"{found.num_worlds} worlds; {found.num_positions:,} positions of {found.num_texts:,} test texts, "
        f"probability at {found.num_mass_positions:,} of them. Intervals: 95 %, over texts.",
    )


def _chart(found: Stability) -> LineChart:
    lines = {"unanimous, greedy": "greedy", "unanimous, Gumbel": "gumbel", "probability inside": "mass"}
    return LineChart(
        title="Unanimity and probability inside, by number of candidates",
        description="Unanimity of either decoder, and the share of the worlds' probability inside the candidates",
        x_label="candidates k",
        y_label="share",
        x_scale="log",
        series=tuple(
            Series(
                label=label,
                x=tuple(float(row.num_candidates) for row in found.rows),
                y=tuple(getattr(row, name).value for row in found.rows),
            )
            for label, name in lines.items()
        ),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("stability", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
