"""Utility of tokens that hide whether a record is in the corpus: what worlds teach together, and what a token costs.

    python -m experiments.corpus.utility --size local --data ../shared/data

Cuts one corpus into few worlds of several records or many of one, builds each with places, and measures released tokens
on texts of the same domain that no world has seen: at every w, the share of the full-data adapter's gain that they keep
and the tokens that each ε leaves. A run that is there already is reused.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import reticent
from experiments.pac.results import Findings, ResultHeader, make_result_folder, write_findings
from experiments.pac.settings import LETTERS, Size
from experiments.pac.sources import makers
from reticent._files import atomic_write_bytes, json_lines
from reticent.benchmark.data import prepare_data
from reticent.benchmark.settings import DataSetChoice
from reticent.benchmark.tiny_models import tiny_model
from reticent.cli.progress import WorkProgress
from reticent.errors import ReticentError
from reticent.evaluation.corpus_evaluation import CorpusEvaluation, CorpusEvaluationRequest, evaluate_corpus_run
from reticent.reports.corpus_evaluation import utility_table
from reticent.reports.model import Block, LineChart, Paragraph, Series
from reticent.text.corpus import read_corpus

HERE = Path(__file__).parent
EPSILONS = (1.0, 2.0, 4.0, 8.0)
CLIP = 0.5


@dataclass(frozen=True)
class UtilitySizes:
    """Sizes of the experiment.

    Attributes:
        records: of the corpus.
        test: texts outside it.
        max_tokens: texts are cut here.
        places: places of a world in each run; the worlds follow.
        reaches: w of each row.
        candidates: k.
    """

    records: int
    test: int
    max_tokens: int
    places: tuple[int, ...]
    reaches: tuple[float, ...]
    candidates: int


SIZES = {
    Size.SMOKE: UtilitySizes(12, 4, 32, (3, 1), (0.5, 1.0), 100),
    Size.LOCAL: UtilitySizes(384, 24, 96, (6, 3, 1), (0.2, 0.4, 0.8, 1.0, 1.6, 3.2), 200),
}
DOMAINS = {
    "nih": DataSetChoice(
        name="nih", domain="grant abstracts", path="nih_abstracts.jsonl.gz", min_characters=600
    ),
    LETTERS: DataSetChoice(name=LETTERS, domain="invented letters", made=LETTERS),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser("python -m experiments.corpus.utility", description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), type=Size, default=Size.SMOKE, help="(default: %(default)s)")
    parser.add_argument("--domain", choices=list(DOMAINS), help="nih, or letters for the smallest size")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="(default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("build/corpus"), help="runs (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=HERE, help="results (default: beside this script)")
    parser.add_argument("--seed", type=int, default=0, help="of training; places have none (default: %(default)s)")
    options = parser.parse_args(given)
    try:
        _run(options, shlex.join(["python", "-m", "experiments.corpus.utility", *given]))
    except ReticentError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _run(options: argparse.Namespace, command: str) -> None:
    sizes = SIZES[options.size]
    domain = options.domain or (LETTERS if options.size is Size.SMOKE else "nih")
    work = options.work / options.size.value / domain
    corpus, test = _texts(domain, sizes, work, options.data)
    model = str(tiny_model("llama", work / "model")) if options.size is Size.SMOKE else "smollm2-135m"
    found = [_measure(sizes, places, corpus, test, model, work, options.seed) for places in sizes.places]
    header = ResultHeader.now(
        name="utility",
        command=command,
        seed=options.seed,
        size=options.size.value,
        domain=domain,
        sizes=vars(sizes),
        clip=CLIP,
        model=model if options.size is not Size.SMOKE else "a tiny random model",
    )
    for path in write_findings(make_result_folder(options.out), header, _findings(found, domain)):
        sys.stderr.write(f"wrote {path}\n")


def _texts(domain: str, sizes: UtilitySizes, work: Path, data: Path) -> tuple[Path, Path]:
    """The corpus and the test texts as files, no two near-duplicates."""
    prepared = prepare_data(DOMAINS[domain], sizes.records + sizes.test, work / "data", data, makers(data))
    texts = [record.text for record in read_corpus(prepared.corpus).records]
    corpus, test = work / "corpus.jsonl", work / "test.jsonl"
    atomic_write_bytes(corpus, json_lines({"text": text} for text in texts[: sizes.records]))
    atomic_write_bytes(test, json_lines({"text": text} for text in texts[sizes.records :]))
    return corpus, test


def _measure(
    sizes: UtilitySizes, places: int, corpus: Path, test: Path, model: str, work: Path, seed: int
) -> CorpusEvaluation:
    """Build a run with this number of places a world, or find it, and evaluate it."""
    run = work / f"places-{places}-seed-{seed}"
    with WorkProgress() as progress:
        reticent.build_worlds(
            corpus,
            out=run,
            model=model,
            worlds=sizes.records // places,
            options=reticent.BuildOptions(
                guarantee="corpus",
                places=places,
                max_tokens=sizes.max_tokens,
                adapt_layers="top:1" if sizes is SIZES[Size.SMOKE] else None,
                dtype="float32" if sizes is SIZES[Size.SMOKE] else "bfloat16",
                seed=seed,
            ),
            resume=run.exists(),
            progress=progress,
        )
        return evaluate_corpus_run(
            CorpusEvaluationRequest(
                run=run,
                test=test,
                out=work / f"evaluation-{run.name}",
                gains=tuple(reach / CLIP for reach in sizes.reaches),
                epsilons=EPSILONS,
                delta=None,
                clip=CLIP,
                temperature=1.0,
                num_candidates=sizes.candidates,
                corpus=corpus,
            ),
            progress,
        )


def _findings(found: Sequence[CorpusEvaluation], domain: str) -> Findings:
    blocks: list[Block] = [
        Paragraph(
            text="One corpus as few worlds of several records or as many worlds of one. w is the most by which all "
            "worlds together move a token's score. A world of one record has one place, whose relation is add-remove "
            "and costs a quarter of the others' replacement. Places are drawn by the operating system, so a repetition "
            "has others. Losses are over positions whose own token is among the public model's candidates."
        )
    ]
    series = []
    for each in found:
        table = utility_table(each)
        label = f"{each.run['num_worlds']} worlds of {each.run['places']}"
        blocks.append(table.model_copy(update={"name": f"utility-{each.run['num_worlds']}", "title": label}))
        released = [row for row in each.utility.rows if row.w is not None and row.kept is not None]
        if released:
            series.append(
                Series(
                    label=label,
                    x=tuple(float(row.tokens[f"{EPSILONS[-1]:g}"]) for row in released),
                    y=tuple(row.kept.value for row in released if row.kept is not None),
                )
            )
    chart = LineChart(
        title="Share of the full-data gain kept, against tokens at ε = 8",
        description="One line a way to cut the corpus, one point a w.",
        x_label="tokens at ε = 8",
        y_label="share of the full-data adapter's gain in loss",
        x_scale="log",
        series=tuple(series),
    )
    return Findings(
        title=f"Utility of tokens under the corpus guarantee, {domain}",
        results={f"{each.run['num_worlds']} worlds": each for each in found},
        blocks=(blocks[0], *([chart] if series else []), *blocks[1:]),
        warnings=("one seed and one drawing of places: intervals are over test texts alone",),
    )


if __name__ == "__main__":
    sys.exit(main())
