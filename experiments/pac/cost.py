"""The cost of a token: reading, decoding and releasing it, and the multiplications of a release."""

import sys

from experiments.pac.common import Experiment, run_script
from experiments.pac.results import Findings
from reticent.decoding.votes import Decoder
from reticent.engine.engine import Engine
from reticent.evaluation.cost import Cost, cost, decode_seconds
from reticent.reports.model import Block, Cell, Table
from reticent.stats.means import Mean

_PROMPT_TOKENS = 32


def measure(experiment: Experiment) -> Findings:
    """Cost of both decoders at the smallest budget."""
    settings = experiment.settings
    engine = Engine(experiment.decoder, experiment.run.worlds())
    prompt = experiment.tokens(experiment.texts.test[:1])[0][:_PROMPT_TOKENS]
    steps = decode_seconds(engine, prompt[: engine.context_length - settings.decode_tokens], settings.decode_tokens)
    found = [
        cost(experiment.votes, decoder, engine.vocab_size, min(settings.budgets), decoding_seconds=steps[1:])
        for decoder in Decoder
    ]
    blocks: tuple[Block, ...] = (_operations(found), _seconds(found))
    return Findings("Cost of a token", {"cost": found}, blocks)


def _operations(found: list[Cost]) -> Table:
    return Table(
        name="operations",
        title="Multiplications of one release, m² d + d² over d coordinates",
        columns=("Over", "Votes", "Coordinates, mean", "Multiplications, mean"),
        rows=tuple(
            (row.space, each.decoder.value, row.coordinates, f"{row.operations:.3g}")
            for each in found
            for row in each.operations
        ),
        note=f"m = {found[0].num_worlds}, {found[0].num_candidates} candidates, a vocabulary of "
        f"{found[0].vocab_size:,}. Counted by the published formula, not timed.",
    )


def _seconds(found: list[Cost]) -> Table:
    names = {
        "reading a position with all worlds": "reading_seconds",
        "decoding a token with all worlds": "decoding_seconds",
        "a release": "release_seconds",
        "a release on which worlds dissent": "dissent_release_seconds",
    }
    return Table(
        name="seconds",
        title="Milliseconds",
        columns=("Step", *(f"{each.decoder} votes" for each in found)),
        rows=tuple((label, *(_milliseconds(getattr(each, name)) for each in found)) for label, name in names.items()),
        note="Wall time on the machine below while nothing else was meant to run; mean ± standard error. "
        "`make bench` measures with care.",
    )


def _milliseconds(seconds: Mean | None) -> Cell:
    if seconds is None:
        return None
    error = "" if seconds.standard_error is None else f" ± {1000 * seconds.standard_error:.2g}"
    return f"{1000 * seconds.value:.3g}{error}"


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("cost", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
