"""The tables and figure of the comparison with PMixED."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.pac.settings import MatchedSizes
from experiments.studies.matched import MatchedRow, OneOrderRow
from experiments.studies.pmixed_calibration import Reading
from reticent._settings import FiniteModel
from reticent.reports.evaluation import cell
from reticent.reports.model import Block, LineChart, Paragraph, Series, Table
from reticent.stats.means import Mean

_HARDLY_ANY = 1e-9


class Ceilings(FiniteModel):
    """Expected accuracy of a sampled token without any privacy, by what samples it; and of the public model."""

    accuracies: dict[str, Mean]


@dataclass(frozen=True)
class MatchedSetting:
    """The setting that tables state: the bound, the total in nats, positions, passes over a shard, sizes, and m."""

    bound: float
    total_nats: float
    positions: int
    shard_epochs: dict[int, int]
    sizes: MatchedSizes
    num_worlds: int


def matched_blocks(
    rows: Sequence[MatchedRow], one_order: Sequence[OneOrderRow], ceilings: Ceilings, setting: MatchedSetting
) -> tuple[Block, ...]:
    """All blocks, in order."""
    return (
        Paragraph(
            text=f"At every horizon both methods may let an attacker reach {setting.bound:.2%} at telling whether a "
            f"record was used: PAC releases {setting.total_nats:.3g} nats in all, PMixED has its radius calibrated to "
            "that success under each reading of its accounting. The two bounds speak of different secrets: of a record "
            "in the realised world, and of a record in the corpus at all."
        ),
        _table(rows, setting),
        _ceilings_table(ceilings, setting),
        _one_order_table(one_order),
        _chart(rows),
    )


def _table(rows: Sequence[MatchedRow], setting: MatchedSetting) -> Table:
    sizes = setting.sizes
    return Table(
        name="matched",
        title="Share of the headroom at an equal bound on membership",
        columns=("Method", "Tokens", "Setting", "Accuracy", "Of its own headroom", "Of the full-data headroom"),
        rows=tuple(
            (
                _name(row),
                row.horizon,
                _setting_text(row),
                cell(row.accuracy),
                cell(row.of_own_ceiling),
                cell(row.of_full_data),
            )
            for row in sorted(rows, key=lambda row: row.horizon)
        ),
        note=f"{setting.positions} positions of test texts, chosen on {sizes.selection_positions} of validation texts; "
        f"the whole vocabulary for PMixED, its candidates for PAC. N in {_list_values(sizes.shards)}, q in "
        f"{_list_values(sizes.sampling_rates)}, order in {_list_values(sizes.max_orders)}. Own headroom: from the "
        "public model to the experts' plain mean, or from the public model held to the candidates to a noiseless "
        "world. "
        f"{sizes.num_draws} draws of coins for PAC. Intervals: 95 %, over texts.{_no_radius(rows)}",
    )


def _no_radius(rows: Sequence[MatchedRow]) -> str:
    """Make the remark on the rigorous reading where it leaves hardly any radius."""
    largest = max((row.beta for row in rows if row.reading == Reading.RIGOROUS and row.beta is not None), default=1.0)
    if largest > _HARDLY_ANY:
        return ""
    return (
        f" Turning orders so low into an epsilon costs about log(1/δ)/order, more than the whole bound: the rigorous "
        f"reading leaves a radius of {largest:.0e} at most, which is the public model."
    )


def _ceilings_table(ceilings: Ceilings, setting: MatchedSetting) -> Table:
    epochs = ", ".join(f"{count} shards: {passes}" for count, passes in setting.shard_epochs.items())
    return Table(
        name="ceilings",
        title="Expected accuracy of a sampled token without privacy, at the same positions",
        columns=("Sampled from", "Accuracy"),
        rows=tuple((name, cell(mean)) for name, mean in ceilings.accuracies.items()),
        note=f"{setting.num_worlds} worlds. An expert passes over its shard as often as it takes to train for as many "
        f"steps as a world, but no more than {setting.sizes.largest_shard_epochs} times ({epochs}).",
    )


def _one_order_table(rows: Sequence[OneOrderRow]) -> Table:
    return Table(
        name="one-order",
        title="What checking PMixED's ball at one order changes",
        columns=("Order", "β", "λ, every order", "λ, one order", "Outside the ball", "Largest divergence over limit"),
        rows=tuple(
            (
                row.max_order,
                f"{row.beta:g}",
                row.weight,
                row.one_order_weight,
                row.share_outside,
                row.largest_excess,
            )
            for row in rows
        ),
        note="Accounting up to an order needs the ball at every order from 2 to twice as much; the public code checks "
        "that order alone. Means over experts and positions. A divergence over its limit of more than 1 means that the "
        "promised guarantee does not hold.",
    )


def _chart(rows: Sequence[MatchedRow]) -> LineChart:
    series = []
    for name in dict.fromkeys(_name(row) for row in rows):
        some = sorted(
            (row for row in rows if _name(row) == name and row.of_own_ceiling is not None), key=lambda row: row.horizon
        )
        shares = [row.of_own_ceiling for row in some if row.of_own_ceiling is not None]
        bands = [share.interval() or (share.value, share.value) for share in shares]
        series.append(
            Series(
                label=name,
                x=tuple(float(row.horizon) for row in some),
                y=tuple(share.value for share in shares),
                low=tuple(low for low, _ in bands),
                high=tuple(high for _, high in bands),
            )
        )
    return LineChart(
        title="Share of its own headroom that each method keeps, by horizon",
        description="A line with its band for each release mechanism of PAC, and for PMixED under each reading",
        x_label="released tokens",
        y_label="share of the headroom",
        x_scale="log",
        series=tuple(series),
    )


def _name(row: MatchedRow) -> str:
    return f"PAC, {row.method}" if row.reading is None else f"PMixED, {row.reading}"


def _setting_text(row: MatchedRow) -> str:
    if row.step_budget is not None:
        return f"b = {row.step_budget:.3g} nats"
    return f"N = {row.num_shards}, q = {row.sampling_rate:g}, order {row.max_order}, β = {row.beta:.3g}"


def _list_values(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
