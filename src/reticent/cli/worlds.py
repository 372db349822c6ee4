"""`reticent worlds`: build, show, verify, export and import run directories."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.cli.command_options import split_names, takes_options
from reticent.cli.output import console, facts, notes, print_json
from reticent.errors import InterruptedRunError, InvalidValueError
from reticent.guarantees import DEFAULT_GUARANTEE, HIDES, Guarantee
from reticent.training.presets import Preset
from reticent.worlds.assignment import Assignment

if TYPE_CHECKING:
    from reticent.api.runs import BuildOptions
    from reticent.worlds.corpus_check import CorpusCheck
    from reticent.worlds.manifest import Manifest

app = typer.Typer(help="Overlapping worlds: one adapter each over one frozen base.")

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.")]
BaseName = Annotated[str, typer.Option("--model", help="Base model: smollm2-135m, a folder, a .gguf file or a hub id.")]
UnitKey = Annotated[
    str | None,
    typer.Option(
        help="Key that names a record's owner; an owner's records stay together. Names that differ by Unicode form "
        "(NFKC) or outer white space alone are one owner."
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        help="What the model reads, with columns in braces; {text} is the one of --text-key, {messages} a chat; "
        "known columns are recognised unless it is given."
    ),
]
AnswerKey = Annotated[
    str, typer.Option(help="Column of the template that alone is trained on and scored; all of it unless given.")
]
AssignmentToMake = Annotated[
    Assignment,
    typer.Option(
        metavar="overlapping|disjoint",
        help="Overlapping worlds, or disjoint shards: for comparison only, nothing is served from them.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class DType(StrEnum):
    """Types to compute in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class BuildCommand:
    """The options of `reticent worlds build`."""

    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="JSONL, CSV, Parquet or text, also .gz; or a folder of texts.")
    ]
    out: Annotated[Path, typer.Option(help="The run directory to make.")]
    model: BaseName = "smollm2-135m"
    worlds: Annotated[int, typer.Option(help="Number of worlds m; even, but for --guarantee corpus.")] = 128
    guarantee: Annotated[
        Guarantee,
        typer.Option(
            help="What released tokens hide: realised-world, which half of the corpus a record is in; corpus, whether "
            "it is in the corpus at all."
        ),
    ] = DEFAULT_GUARANTEE
    places: Annotated[
        int | None,
        typer.Option(
            help="For --guarantee corpus: units a world may hold, declared without looking at the corpus; 1 is "
            "recommended where that many worlds fit."
        ),
    ] = None
    unit_records: Annotated[
        int, typer.Option(help="For --guarantee corpus: records of a unit that its place holds; more are left out.")
    ] = 1
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text"
    unit_key: UnitKey = None
    limit: Annotated[int | None, typer.Option(help="Read at most this many records.")] = None
    template: Template = None
    answer_key: AnswerKey = ""
    max_tokens: Annotated[int, typer.Option(help="Cut records to this many tokens.")] = 256
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Where epochs, learning-rate, rank and adapt-layers stand unless given: plain, or corpus for "
            "--guarantee corpus."
        ),
    ] = None
    epochs: Annotated[int | None, typer.Option(help="Passes over each world's records; plain: 1.")] = None
    batch_size: Annotated[int, typer.Option(help="Records of a world per step, about.")] = 8
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate; plain: 3e-4.")] = None
    rank: Annotated[int | None, typer.Option(help="LoRA rank; plain: 8.")] = None
    alpha: Annotated[float | None, typer.Option(help="LoRA alpha; twice the rank unless given.")] = None
    target_modules: Annotated[
        str, typer.Option(help="Comma-separated module names, or `attention`, or `all-linear`.")
    ] = "attention"
    adapt_layers: Annotated[
        str | None,
        typer.Option(metavar="all|top:K", help="Adapt all blocks (plain), or the last K: faster to train and serve."),
    ] = None
    dtype: Annotated[DType, typer.Option(help="Type to compute in.")] = DType.FLOAT32
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, …")] = "cpu"
    seed: Annotated[int, typer.Option(help="Public seed of record order and initial adapters.")] = 0
    assignment: AssignmentToMake = Assignment.OVERLAPPING
    membership_seed: Annotated[int, typer.Option(help="Public seed that assigns units to worlds.")] = 0
    worlds_at_once: Annotated[
        int | None, typer.Option(help="Worlds trained in one batched pass; bounds memory. Chosen to fit unless given.")
    ] = None
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Compile training's element-wise work, which needs a C++ compiler; by default where it pays.",
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted build.")] = False
    as_json: AsJson = False

    @property
    def training(self) -> "BuildOptions":
        """The options as `build_worlds` takes them."""
        from reticent.api.runs import BuildOptions

        return BuildOptions(
            preset=self.preset,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            max_tokens=self.max_tokens,
            template=self.template,
            answer_key=self.answer_key,
            rank=self.rank,
            alpha=self.alpha,
            target_modules=split_names(self.target_modules),
            adapt_layers=self.adapt_layers,
            dtype=self.dtype.value,
            device=self.device,
            seed=self.seed,
            membership_seed=self.membership_seed,
            assignment=self.assignment,
            guarantee=self.guarantee,
            places=self.places,
            unit_records=self.unit_records,
            worlds_at_once=self.worlds_at_once,
            compile=self.compile,
        )


@app.command("build")
@takes_options(BuildCommand)
def build(options: BuildCommand) -> None:
    """Adapt the base on a private corpus as m overlapping worlds, all trained together, plus one on all records."""
    from reticent.api.runs import build_worlds
    from reticent.cli.progress import WorkProgress

    try:
        with WorkProgress() as progress:
            run = build_worlds(
                options.corpus,
                out=options.out,
                model=options.model,
                worlds=options.worlds,
                text_key=options.text_key,
                unit_key=options.unit_key,
                limit=options.limit,
                options=options.training,
                resume=options.resume,
                progress=progress,
            )
    except KeyboardInterrupt:
        raise InterruptedRunError(f"the same command with --resume continues from here ({options.out})") from None
    _print_manifest(options.out, run.manifest, options.as_json)


@app.command("check")
def check(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="What `worlds build` would be given.")],
    model: BaseName = "smollm2-135m",
    worlds: Annotated[str, typer.Option(metavar="M,…", help="Numbers of worlds to plan for.")] = "16,64,128",
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text",
    unit_key: UnitKey = None,
    limit: Annotated[int | None, typer.Option(help="Read at most this many records.")] = None,
    template: Template = None,
    answer_key: AnswerKey = "",
    max_tokens: Annotated[int, typer.Option(help="Cut records to this many tokens.")] = 256,
    as_json: AsJson = False,
) -> None:
    """Look at a corpus as a build would, and train nothing: units, lengths, what is left out, and what m would mean."""
    from reticent._settings import readable_settings
    from reticent.models.base import resolve_base_model
    from reticent.text.corpus import read_corpus
    from reticent.text.template import template_for
    from reticent.worlds.corpus_check import check_corpus

    numbers = split_names(worlds)
    if not all(number.isdecimal() for number in numbers):
        raise InvalidValueError(f"worlds must be whole numbers separated by commas, got {worlds!r}")
    with readable_settings("template"):
        wanted = template_for(corpus, text_key, template, answer_key, max_tokens=max_tokens)
    records = read_corpus(corpus, text_key=text_key, unit_key=unit_key, limit=limit, layout=wanted.layout)
    tokenizer = resolve_base_model(model).load_tokenizer()
    found = check_corpus(records, tokenizer, wanted, [int(number) for number in numbers])
    if as_json:
        print_json({"template": wanted.model_dump(mode="json"), **found.model_dump(mode="json")})
        return
    _print_check(found)


@app.command("show")
def show(run: RunFolder, as_json: AsJson = False) -> None:
    """Show a run: base, corpus by count and hash, adapters, training. Verifies nothing but the manifest."""
    from reticent.worlds.manifest import read_manifest

    _print_manifest(run, read_manifest(run), as_json)


@app.command("verify")
def verify(
    run: RunFolder,
    base: Annotated[bool, typer.Option("--base/--no-base", help="Also verify that the base model is found.")] = True,
    model: Annotated[str | None, typer.Option("--model", help="Where the base model is, if it has moved.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every file of a run, and its base model, with the hashes in the manifest; every number must be finite."""
    from reticent.worlds.run_directory import RunDirectory

    opened = RunDirectory.open(run, None)
    opened.refuse_not_finite()
    if base:
        opened.base(model)
    if as_json:
        print_json({"run": str(run), "verified": sorted(opened.manifest.files), "base_verified": base})
        return
    checked = [*sorted(opened.manifest.files), *(["base model"] if base else [])]
    console.print(f"{run}: {', '.join(checked)} are as built", highlight=False)


@app.command("export")
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The PEFT folder to make.")],
    world: Annotated[int | None, typer.Option(help="Which world, from 0.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The adapter trained on all records instead.")] = False,
) -> None:
    """Write one world's adapter as a folder that PEFT loads."""
    from reticent.worlds.peft_exchange import export_world
    from reticent.worlds.run_directory import RunDirectory

    if (world is None) != full:
        raise InvalidValueError("give either --world J or --full")
    export_world(RunDirectory.open(run, None), world, out)
    notes.print(f"wrote {out}", highlight=False)


@app.command("import")
def import_(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="m PEFT folders, world 0 first.")],
    out: Annotated[Path, typer.Option(help="The run directory to make.")],
    model: BaseName = "smollm2-135m",
    membership: Annotated[
        Path | None,
        typer.Option(
            help=".npz with `members`, bool [units, m]: who is in which world. Worlds that were exported say so "
            "themselves; without either no prior is known, and nothing is released from the run."
        ),
    ] = None,
    full: Annotated[Path | None, typer.Option(help="PEFT folder of an adapter on all records.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a run from LoRA adapters trained elsewhere."""
    from reticent.worlds.peft_exchange import import_worlds

    def warn(sentence: str) -> None:
        notes.print(f"warning: {sentence}", highlight=False)

    run = import_worlds(folders, model, out, membership, full, warn)
    _print_manifest(out, run.manifest, as_json)


_MEMBERSHIP = {
    Assignment.OVERLAPPING: "each unit in half of the worlds, prior 50 %",
    Assignment.DISJOINT: "each unit in one of disjoint shards; nothing is released from them",
    Assignment.PLACES: "each unit in a place of its own, drawn in secret",
    Assignment.UNKNOWN: "no prior known: nobody said who is in which world; nothing is released from them",
}


def _describe_guarantee(guarantee: Guarantee | None) -> str:
    return "none" if guarantee is None else f"{guarantee}: hides {HIDES[guarantee]}"


def _print_check(found: "CorpusCheck") -> None:
    least, middle, most_of, most = found.tokens
    rows = {
        "records": f"{found.records:,} in {found.units:,} units, the largest of {found.largest_unit:,}",
        "left out": f"{found.skipped_blank:,} blank records, {found.ignored_messages:,} messages of tools",
        "repeated": f"{found.repeats:,} records; {found.merged_units:,} units merged as near-duplicates "
        f"({found.merged_once_cut:,} once cut), {found.respelled_units:,} spellings of names taken for others",
        "tokens of a record": f"{least:,} to {most:,}, half up to {middle:,}, 95 % up to {most_of:,}",
        "cut": f"{found.truncated:,} records, at {found.max_tokens:,} tokens; {found.unscored:,} have nothing to learn",
        "tokens to predict": f"{found.scored_tokens:,}",
    }
    largest = max(bin_.count for bin_ in found.lengths)
    for bin_ in found.lengths:
        bar = "█" * round(30 * bin_.count / largest)
        rows[f"{bin_.low:,} to {bin_.high:,} tokens"] = f"{bin_.count:>7,} {bar}"
    for plan in found.plans:
        rows[f"m = {plan.worlds:,}"] = (
            f"{plan.records_per_world:,.0f} records a world, {plan.training_tokens:,} tokens of training an epoch"
        )
    console.print(facts(rows))


def _print_manifest(folder: Path, manifest: "Manifest", as_json: bool) -> None:
    if as_json:
        print_json(manifest.model_dump(mode="json"))
        return
    lora, corpus, training = manifest.lora, manifest.corpus, manifest.training
    layers = "all blocks" if lora.num_top_layers is None else f"the last {lora.num_top_layers} blocks"
    rows = {
        "run": str(folder),
        "worlds": str(manifest.num_worlds),
        "membership": _MEMBERSHIP[manifest.assignment],
        "guarantee": "none"
        if manifest.guarantee is None
        else f"{manifest.guarantee}: hides {HIDES[manifest.guarantee]}",
        "base": f"{manifest.base.name} ({manifest.base.class_name}, {manifest.base.content_hash[:12]})",
        "adapters": f"LoRA rank {lora.rank} on {', '.join(lora.target_modules)} of {layers}",
    }
    if (capacity := manifest.capacity) is not None:
        rows["places"] = (
            f"{capacity.places} a world, for {capacity.num_places:,} units of up to {capacity.records} record(s); this "
            "is public, what follows is the operator's"
        )
    if corpus is not None:
        rows["records"] = f"{corpus.num_records:,} in {corpus.num_units:,} units, {corpus.num_tokens:,} tokens"
        rows["left out, cut, merged"] = (
            f"{corpus.num_skipped_blank} blank, {corpus.num_truncated} cut, {corpus.num_merged_units} units merged "
            f"({corpus.num_merged_once_cut} once cut)"
        )
    if training is not None:
        rows["training"] = f"{training.epochs} epoch(s), learning rate {training.learning_rate:g}, {training.dtype}"
    console.print(facts(rows))
