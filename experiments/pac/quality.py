"""Quality of free-running text: repetition, diversity and perplexity, beside human text and greedy decoding."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from experiments.pac.common import Experiment, run_script
from experiments.pac.results import Findings
from experiments.pac.settings import Size
from experiments.studies.quality import Quality, QualityModels, QualitySettings, measure_quality
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.engine.engine import Engine
from reticent.errors import CorpusError
from reticent.reports.evaluation import budget_text, cell
from reticent.reports.model import IntervalChart, Table

NO_MAUVE = (
    "MAUVE is left out: its library is not a dependency, and an estimate from some dozens of texts is mostly bias "
    "(arXiv 2102.01454 uses thousands)"
)


@dataclass(frozen=True)
class QualitySizes:
    """Sizes of the generated texts, and their models.

    Attributes:
        num_worlds, corpus: of the run that generates; a decode step costs a row a world.
        num_texts: held-out texts that are continued.
        settings: prompts, lengths, budgets.
    """

    num_worlds: int
    corpus: int
    num_texts: int
    settings: QualitySettings


_GUMBEL = DecodingSettings(Decoder.GUMBEL, 1.0)
SIZES: Mapping[Size, QualitySizes] = {
    Size.SMOKE: QualitySizes(4, 8, 3, QualitySettings(4, 16, replace(_GUMBEL, num_candidates=20), budgets=(2.0**-32,))),
    Size.LOCAL: QualitySizes(16, 128, 6, QualitySettings(32, 256, _GUMBEL, budgets=(2.0**-8, 2.0**-32))),
    Size.PAPER: QualitySizes(128, 2048, 256, QualitySettings(32, 256, _GUMBEL)),
}


def measure(experiment: Experiment) -> Findings:
    """Continue the beginnings of held-out texts in every way."""
    sizes = SIZES[experiment.settings.size]
    run = experiment.build(
        "quality", experiment.texts.corpus[: sizes.corpus], sizes.num_worlds, experiment.lora, experiment.training
    )
    settings = replace(sizes.settings, seed=experiment.settings.seed)
    length = settings.prompt_tokens + settings.num_tokens
    held_out = (*experiment.texts.test, *experiment.texts.spare)
    texts = [tokens for tokens in experiment.tokens(held_out, length) if len(tokens) == length][: sizes.num_texts]
    if not texts:
        raise CorpusError(f"no held-out text has {length} tokens; use longer texts")
    models = QualityModels(
        Engine(experiment.decoder, run.worlds()),
        Engine(experiment.decoder, run.full()),
        experiment.base.load(experiment.dtype),
    )
    found = measure_quality(models, texts, settings, experiment.progress.note)
    reference = experiment.settings.model
    return Findings(
        title="Quality of free-running text",
        results={"quality": found, "reference_model": reference, "num_worlds": sizes.num_worlds},
        blocks=(_table(found, reference), _chart(found)),
        warnings=(NO_MAUVE,),
    )


def _name(method: str, budget: float | None) -> str:
    return method if budget is None else f"{method} {budget_text(budget)}"


def _table(found: Quality, reference: str) -> Table:
    return Table(
        name="quality",
        title=f"{found.num_tokens} tokens behind {found.prompt_tokens}, {found.decoder.value} votes",
        columns=(
            "Method", "Nats a token", "rep-3", "distinct-1", "distinct-2", "distinct-3", "Nats under the reference",
            "Perplexity", "Steps with dissent",
        ),
        rows=tuple(
            (
                row.method,
                budget_text(row.step_budget),
                cell(row.repetition),
                *(cell(mean) for mean in row.distinct),
                cell(row.reference_nats),
                row.perplexity,
                "one voter" if row.dissent is None else cell(row.dissent),
            )
            for row in found.rows
        ),
        note=f"{found.num_texts} held-out texts, {found.num_worlds} worlds. Reference: {reference}, the public model. "
        "`noiseless` draws one world for each text, which is also the distribution of the request-world control. "
        "Intervals: 95 %, over texts.",
    )  # fmt: skip


def _chart(found: Quality) -> IntervalChart:
    rows = [(_name(row.method, row.step_budget), cell(row.repetition)) for row in found.rows]
    return IntervalChart(
        title="Repetition of free-running text",
        description="rep-3, the share of a text's trigrams that repeat earlier ones; the line is human text",
        x_label="rep-3",
        rows=tuple((name, value) for name, value in rows if not isinstance(value, float | None)),
        reference=found.row("human").repetition.value,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("quality", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
