"""The report of an evaluation: warnings, the utility–budget table, stability, sessions, cost, and how to repeat it."""

import math
from collections.abc import Iterable, Sequence

from reticent.evaluation.cost import Cost
from reticent.evaluation.fidelity import Fidelity
from reticent.evaluation.recommendation import Recommendation
from reticent.evaluation.run_evaluation import Evaluation
from reticent.evaluation.stability import Stability
from reticent.evaluation.utility import Utility, UtilityRow
from reticent.pac.wording import NOT_BOUNDED
from reticent.reports.audit import flatten_details
from reticent.reports.model import Block, Cell, Facts, LineChart, Paragraph, Report, Section, Series, Table
from reticent.stats.estimate import Estimate
from reticent.stats.means import CONFIDENCE, Mean

_NOTE = "Standard errors and 95 % intervals are over texts."


def evaluation_report(result: Evaluation) -> Report:
    """Turn an evaluation into a report."""
    sections: list[Section] = []
    if result.utility:
        recommended = [Paragraph(text=recommendation_text(each)) for each in result.recommendations]
        sections.append(Section(title="Utility and budget", blocks=(*recommended, *_utility_blocks(result.utility))))
    if result.stability is not None:
        sections.append(Section(title="Stability", blocks=_stability_blocks(result.stability)))
    if result.fidelity is not None:
        sections.append(Section(title="Sampling fidelity", blocks=(_fidelity_table(result.fidelity),)))
    if result.composition:
        sections.append(Section(title="Composition", blocks=(_composition_table(result),)))
    if result.leakage:
        sections.append(Section(title="Leakage", blocks=(_leakage_table(result),)))
    if result.cost:
        sections.append(Section(title="Cost", blocks=tuple(_cost_blocks(result.cost))))
    sections.append(_reproduction(result))
    return Report(
        title=f"Evaluation of {result.run.get('folder', 'a run')}",
        created=result.created,
        warnings=result.warnings,
        sections=tuple(sections),
    )


def recommendation_text(recommended: Recommendation) -> str:
    """The mechanism to choose for one decoder, and why, as one paragraph."""
    return f"Recommended for {recommended.decoder} votes: --release {recommended.mechanism}. {recommended.reason}"


def utility_table(result: Utility) -> Table:
    """Every method with its accuracy, the share of the gain it keeps, and its flips."""
    return Table(
        name=f"utility-{result.decoder.value}",
        title=f"Next-token accuracy, {result.decoder.value} votes",
        columns=(
            "Method",
            "Nats a token",
            "Accuracy",
            "Of the noiseless gain",
            "Of the full-data gain",
            "Noise cost",
            "Flips on dissent",
        ),
        rows=tuple(
            (
                row.method,
                budget_text(row.step_budget),
                cell(row.accuracy),
                cell(row.kept),
                cell(row.of_full_gain),
                cell(row.noise_cost),
                cell(row.flips),
            )
            for row in result.rows
        ),
        note=f"Gain of a noiseless world over the public model: {result.gain.value:+.2%}; all worlds agree at "
        f"{result.unanimity.value:.1%} of positions; the right token is among the candidates at "
        f"{result.in_candidates.value:.1%}. Controls never touch the secret. {result.num_sessions} secrets and noise "
        f"draws a budget. {_NOTE}",
    )


def plus_minus(mean: Mean | None) -> str:
    """A mean and its standard error on few characters, for a terminal."""
    if mean is None:
        return ""
    return f"{mean.value:.3f}" + ("" if mean.standard_error is None else f" ± {mean.standard_error:.3f}")


def cell(mean: Mean | None) -> Cell:
    """A mean as a table's cell: with its interval if it has one."""
    if mean is None:
        return None
    interval = mean.interval()
    if interval is None:
        return mean.value
    return Estimate(value=mean.value, low=interval[0], high=interval[1], confidence=CONFIDENCE)


def budget_text(nats: float | None) -> str | None:
    """A budget as a power of two where it is one."""
    if nats is None:
        return None
    mantissa, exponent = math.frexp(nats)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{nats:.3g}"


def _utility_blocks(results: Iterable[Utility]) -> Iterable[Block]:
    for result in results:
        yield utility_table(result)
        yield _utility_chart(result)


def _utility_chart(result: Utility) -> LineChart:
    methods = list(dict.fromkeys(row.method for row in result.rows if row.step_budget is not None))
    series = [_over_budgets(method, [row for row in result.rows if row.method == method]) for method in methods]
    budgets = [row.step_budget for row in result.rows if row.step_budget is not None]
    ends = (min(budgets), max(budgets)) if budgets else (2.0**-32, 1.0)
    series += [
        Series(label=row.method, x=ends, y=(row.accuracy.value,) * 2) for row in result.rows if row.step_budget is None
    ]
    return LineChart(
        title=f"Accuracy against budget, {result.decoder.value} votes",
        description="One line a release mechanism with its interval; level lines for what has no budget.",
        x_label="nats a token",
        y_label="next-token accuracy",
        x_scale="log",
        series=tuple(series),
    )


def _over_budgets(method: str, rows: Sequence[UtilityRow]) -> Series:
    ordered = sorted(rows, key=lambda row: row.step_budget or 0.0)
    bands = [row.accuracy.interval() for row in ordered]
    known = [band for band in bands if band is not None]
    banded = len(known) == len(bands)
    return Series(
        label=method,
        x=tuple(row.step_budget or 0.0 for row in ordered),
        y=tuple(row.accuracy.value for row in ordered),
        low=tuple(low for low, _ in known) if banded else None,
        high=tuple(high for _, high in known) if banded else None,
    )


def _stability_blocks(result: Stability) -> tuple[Block, ...]:
    table = Table(
        name="stability",
        title="How often all worlds agree",
        columns=("Candidates", "Unanimous, greedy", "Unanimous, gumbel", "Probability inside"),
        rows=tuple((row.num_candidates, cell(row.greedy), cell(row.gumbel), cell(row.mass)) for row in result.rows),
        note=f"{result.num_worlds} worlds, {result.num_positions:,} positions of {result.num_texts:,} texts; "
        f"probability at {result.num_mass_positions:,} of them. {_NOTE}",
    )
    names = ("greedy", "gumbel", "mass")
    chart = LineChart(
        title="Unanimity and probability inside, by number of candidates",
        description="Three lines over the number of candidates: unanimity of either decoder, and the share of the "
        "worlds' probability inside the candidates.",
        x_label="candidates",
        y_label="share",
        x_scale="log",
        series=tuple(
            Series(
                label=name,
                x=tuple(float(row.num_candidates) for row in result.rows),
                y=tuple(getattr(row, name).value for row in result.rows),
            )
            for name in names
        ),
    )
    return table, chart


def _fidelity_table(result: Fidelity) -> Table:
    return Table(
        name="fidelity",
        title="Total variation to the noiseless mixture of the worlds",
        columns=("Method", "Nats a token", "Total variation"),
        rows=tuple((row.method, budget_text(row.step_budget), cell(row.total_variation)) for row in result.rows),
        note=f"{result.num_draws} draws of coins at each of {result.num_positions:,} positions. The fresh-world draw "
        f"has the mixture's own distribution; what it shows is the noise of that number of draws. {_NOTE}",
    )


def _composition_table(result: Evaluation) -> Table:
    first = result.composition[0]
    prior = "no prior is known" if first.membership_prior is None else f"{first.membership_prior:.2f}"
    return Table(
        name="composition",
        title="What the curator's own posterior tells after a whole deployment",
        columns=(
            "Votes", "Mechanism", "Nats a token", "Record's half named right", "Bound", "World named right",
            "Bound on it",
        ),
        rows=tuple(
            (
                row.decoder.value, row.mechanism.value, budget_text(row.step_budget), cell(row.membership),
                "no prior known" if row.membership_bound is None else row.membership_bound, row.world, row.world_bound,
            )
            for row in result.composition
        ),
        note=f"{first.num_sessions:,} deployments of {first.num_tokens:,} charged tokens. Guessing alone: "
        f"{prior} for a record, {first.world_prior:.4f} for the world. Intervals: over sessions "
        f"for records, exact for worlds. The bound is on the mean over S; it does not cover {NOT_BOUNDED}.",
    )  # fmt: skip


def _leakage_table(result: Evaluation) -> Table:
    return Table(
        name="leakage",
        title="Information about the secret in the mechanism's history, as a share of the charge",
        columns=(
            "Votes", "Mechanism", "Nats a token", "Charge, nats", "Information, nats", "Share of charge", "Dissent",
        ),
        rows=tuple(
            (
                row.decoder.value, row.mechanism.value, budget_text(row.step_budget), row.charge_nats,
                row.information_nats.value, cell(row.share_of_charge), cell(row.dissent),
            )
            for row in result.leakage
        ),
        note="For small budgets the share is the dissent rate: unanimous tokens are charged and tell nothing. "
        "Intervals are over sessions.",
    )  # fmt: skip


def _cost_blocks(costs: Sequence[Cost]) -> Iterable[Block]:
    for result in costs:
        name = result.decoder.value
        yield Table(
            name=f"operations-{name}",
            title=f"Multiplications of one release, {name} votes",
            columns=("Over", "Coordinates, mean", "Multiplications, mean"),
            rows=tuple((row.space, row.coordinates, row.operations) for row in result.operations),
            note="m² d + d² over d coordinates, as published.",
        )
        yield Facts(rows=tuple(_seconds(result)))
    yield Paragraph(text="Seconds are wall time on this machine while the evaluation ran: orders of magnitude.")


def _seconds(result: Cost) -> Iterable[tuple[str, str]]:
    named = {
        "reading a position with all worlds": result.reading_seconds,
        "decoding a token with all worlds": result.decoding_seconds,
        "a release": result.release_seconds,
        "a dissenting release": result.dissent_release_seconds,
    }
    for name, mean in named.items():
        if mean is not None:
            yield f"{result.decoder.value}: {name}", f"{1000 * mean.value:.3g} ms"


def _reproduction(result: Evaluation) -> Section:
    records = {
        "run": result.run, "data": result.data, "setting": result.settings, "version": dict(result.versions),
        "machine": result.machine,
    }  # fmt: skip
    rows = [(f"{kind}: {name}", value) for kind, record in records.items() for name, value in flatten_details(record)]
    return Section(title="Run, data, settings, versions", blocks=(Facts(rows=tuple(rows)),))
