"""Stability is the currency: unanimity and the gain kept against how worlds are trained, one factor at a time.

The operating point is chosen by a rule that is fixed here: among the runs that differ from the centre in what a user is
free to choose (learning rate, epochs, rank, layers), the one of largest accuracy on validation texts, for the Gaussian
release of Gumbel votes at the smallest budget; among equals the one trained on fewer tokens. The corpus and m are what
a deployment has, so they are mapped but not chosen. Test texts play no part.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from experiments.pac.common import Experiment, run_script
from experiments.pac.operating_point import OperatingPoint, write_operating_point
from experiments.pac.results import Findings
from reticent._settings import FiniteModel
from reticent.decoding.votes import Decoder
from reticent.evaluation.utility import Utility, UtilityRow, UtilitySettings, utility
from reticent.pac.mechanism import ReleaseMechanism
from reticent.reports.evaluation import cell
from reticent.reports.model import LineChart, Series, Table
from reticent.stats.means import Mean
from reticent.training.settings import worlds_that_fit

RULE = (
    "largest accuracy of the Gaussian release of Gumbel votes at the smallest budget on validation texts, over "
    "learning rate, epochs, rank and layers; among equals, fewer tokens trained"
)
CENTRE = "centre"
_FREE = (CENTRE, "learning rate", "epochs", "rank", "layers")


@dataclass(frozen=True)
class Point:
    """One run: which factor it changes, and all settings."""

    factor: str
    learning_rate: float
    epochs: int
    rank: int
    layers: int
    corpus: int
    num_worlds: int


class SweepRow(FiniteModel):
    """The worth of one run on validation texts, for each decoder.

    Attributes:
        factor: what differs from the centre.
        tokens_trained: by all worlds together.
        unanimity, gain, accuracy: of each decoder: all worlds agree; noiseless less public; of the Gaussian release.
        kept: share of the gain by decoder and method; None where there is no gain.
    """

    factor: str
    learning_rate: float
    epochs: int
    rank: int
    layers: int
    corpus: int
    num_worlds: int
    tokens_trained: int
    unanimity: dict[str, Mean]
    gain: dict[str, Mean]
    accuracy: dict[str, Mean]
    kept: dict[str, dict[str, Mean | None]]


def measure(experiment: Experiment) -> Findings:
    """Build every run, measure it on validation texts, choose, and write the operating point."""
    points = list(sweep_points(experiment))
    rows = []
    for number, point in enumerate(points, start=1):
        experiment.progress.note(f"run {number}/{len(points)}: {point}")
        rows.append(_row(experiment, point))
    best = choose_row(rows)
    size, domain = experiment.settings.size.value, experiment.domain.value
    operating_point = OperatingPoint(
        learning_rate=best.learning_rate,
        epochs=best.epochs,
        rank=best.rank,
        num_top_layers=best.layers,
        chosen_on=f"{size} {domain}",
        rule=RULE,
    )
    write_operating_point(experiment.out, operating_point)
    blocks = (_table(rows, best), _chart(rows, Decoder.GREEDY), _chart(rows, Decoder.GUMBEL))
    results = {"rows": rows, "chosen": operating_point.model_dump(mode="json")}
    return Findings("Stability is the currency: what training does to agreement", results, blocks)


def sweep_points(experiment: Experiment) -> Iterator[Point]:
    """The centre, and each factor at its other values."""
    settings, sizes = experiment.settings, experiment.settings.sweep
    layers = settings.lora.num_top_layers or experiment.decoder.num_layers
    training = settings.training
    centre = Point(
        CENTRE, training.learning_rate, training.epochs, settings.lora.rank, layers, sizes.corpus, sizes.num_worlds
    )
    yield centre
    for rate in sizes.learning_rates:
        yield replace(centre, factor="learning rate", learning_rate=rate)
    for epochs in sizes.epochs:
        yield replace(centre, factor="epochs", epochs=epochs)
    for rank in sizes.ranks:
        yield replace(centre, factor="rank", rank=rank)
    for count in sizes.layers:
        yield replace(centre, factor="layers", layers=count)
    for corpus in sizes.corpora:
        yield replace(centre, factor="corpus", corpus=corpus)
    for worlds in sizes.worlds:
        yield replace(centre, factor="worlds", num_worlds=worlds)


def choose_row(rows: list[SweepRow]) -> SweepRow:
    """The run that the rule chooses."""
    free = [row for row in rows if row.factor in _FREE]
    return max(free, key=lambda row: (row.accuracy[Decoder.GUMBEL].value, -row.tokens_trained))


def _row(experiment: Experiment, point: Point) -> SweepRow:
    settings, sizes = experiment.settings, experiment.settings.sweep
    lora = settings.lora.model_copy(
        update={"rank": point.rank, "alpha": 2.0 * point.rank, "num_top_layers": point.layers}
    )
    training = settings.training.model_copy(
        update={
            "learning_rate": point.learning_rate,
            "epochs": point.epochs,
            "max_tokens": sizes.max_tokens,
            "worlds_at_once": worlds_that_fit(settings.training.batch_size, sizes.max_tokens),
        }
    )
    run = experiment.build("sweep", experiment.texts.corpus[: point.corpus], point.num_worlds, lora, training)
    texts = experiment.texts.validation[: sizes.validation]
    votes = settings.votes.model_copy(update={"mass_every": 10**6, "logits_every": 10**6})
    tensor = experiment.cast("sweep", run, texts, sizes.max_tokens, votes)
    wanted = UtilitySettings((min(settings.budgets),), num_sessions=settings.num_draws, seed=settings.seed)
    found = {decoder.value: utility(tensor, decoder, wanted) for decoder in Decoder}
    corpus = run.manifest.corpus
    assert corpus is not None, "a run that was built here has a corpus"
    return SweepRow(
        **vars(point),
        tokens_trained=corpus.num_tokens * point.epochs * point.num_worlds // 2,
        unanimity={name: result.unanimity for name, result in found.items()},
        gain={name: result.gain for name, result in found.items()},
        accuracy={
            name: _find_release_row(result, ReleaseMechanism.GAUSSIAN).accuracy for name, result in found.items()
        },
        kept={name: _compute_shares_kept(result) for name, result in found.items()},
    )


def _find_release_row(result: Utility, mechanism: ReleaseMechanism) -> UtilityRow:
    return next(row for row in result.rows if row.method == mechanism.value)


def _compute_shares_kept(result: Utility) -> dict[str, Mean | None]:
    methods = ("gaussian", "mixture", "plurality", "full-data")
    return {row.method: row.kept for row in result.rows if row.method in methods}


def _table(rows: list[SweepRow], best: SweepRow) -> Table:
    return Table(
        name="sweep",
        title="One factor at a time, on validation texts",
        columns=(
            "Factor",
            "Rate",
            "Epochs",
            "Rank",
            "Layers",
            "Records",
            "m",
            "Unanimous, greedy",
            "Kept, greedy",
            "Unanimous, Gumbel",
            "Gain, Gumbel",
            "Kept, Gumbel",
            "Accuracy, Gumbel",
        ),
        rows=tuple(
            (
                f"{row.factor} (chosen)" if row is best else row.factor,
                f"{row.learning_rate:g}",
                row.epochs,
                row.rank,
                row.layers,
                row.corpus,
                row.num_worlds,
                cell(row.unanimity[Decoder.GREEDY]),
                cell(row.kept[Decoder.GREEDY]["gaussian"]),
                cell(row.unanimity[Decoder.GUMBEL]),
                cell(row.gain[Decoder.GUMBEL]),
                cell(row.kept[Decoder.GUMBEL]["gaussian"]),
                cell(row.accuracy[Decoder.GUMBEL]),
            )
            for row in rows
        ),
        note="Kept: share of the noiseless gain that the Gaussian release keeps at the smallest budget. "
        f"Chosen: {RULE}. Intervals: 95 %, over texts; runs share texts and coins, so that their differences are surer "
        "than the intervals say.",
    )


def _chart(rows: list[SweepRow], decoder: Decoder) -> LineChart:
    centre = next(row for row in rows if row.factor == CENTRE)
    series = []
    for factor in dict.fromkeys(row.factor for row in rows if row.factor != CENTRE):
        points = [
            (row.unanimity[decoder].value, kept.value)
            for row in (centre, *rows)
            if (row is centre or row.factor == factor) and (kept := row.kept[decoder]["gaussian"]) is not None
        ]
        ordered = sorted(set(points))
        if ordered:
            series.append(Series(label=factor, x=tuple(x for x, _ in ordered), y=tuple(y for _, y in ordered)))
    return LineChart(
        title=f"Share of the gain kept against unanimity, {decoder} votes",
        description="One line a factor through the centre: where worlds agree more, calibrated noise costs less",
        x_label="unanimous positions",
        y_label="share of the gain kept",
        series=tuple(series) or (Series(label="no run has a gain", x=(0.0, 1.0), y=(0.0, 0.0)),),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("sweep", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
