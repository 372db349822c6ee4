"""`reticent audit`: attack a model, an adapter, a world of a run or an endpoint, and report how much it gives away."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from reticent.api.audits import AuditOptions
from reticent.cli.command_options import takes_options
from reticent.cli.output import console, notes, print_json
from reticent.cli.worlds import DType
from reticent.errors import InterruptedRunError, PartialAuditError

if TYPE_CHECKING:
    from reticent.auditing.results import AttackResult, AuditResult
    from reticent.stats.estimate import Estimate


@dataclass(frozen=True)
class AuditCommand:
    """The options of `reticent audit`."""

    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Model, PEFT or bottleneck folder, hub id, .gguf, output of adapt, run directory, or URL.",
        ),
    ]
    members: Annotated[Path, typer.Option(help="Texts it was trained on; or the whole corpus, see --nonmembers.")]
    out: Annotated[Path, typer.Option(help="Folder for report, scores and cache; the same command resumes.")]
    nonmembers: Annotated[
        Path | None,
        typer.Option(help="Texts it was not trained on. Without it, --members is divided by the target's own lists."),
    ] = None
    reference: Annotated[
        str | None, typer.Option(help="Model before adaptation; an adapter's own base unless given.")
    ] = None
    attacks: Annotated[
        str, typer.Option(help="all, or names with commas between; an unknown name is answered with the list.")
    ] = "all"
    mlm: Annotated[
        str | None, typer.Option(help="Masked language model that makes neighbours; the target's base unless given.")
    ] = None
    shadow: Annotated[
        list[str] | None, typer.Option(help="An output of adapt that serves as a shadow model; may be repeated.")
    ] = None
    world: Annotated[int | None, typer.Option(help="Audit this world of a run; the others are its shadows.")] = None
    canaries: Annotated[Path | None, typer.Option(help="canaries.jsonl of `reticent canaries plant`.")] = None
    model: Annotated[
        str | None, typer.Option(help="Where the base model is, if it has moved; on a server, the model's name.")
    ] = None
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text"
    nonmember_text_key: Annotated[
        str | None, typer.Option(help="Key or column of the non-members' text, where it is another.")
    ] = None
    unit_key: Annotated[
        str | None,
        typer.Option(help="Key or column that names each text's owner: intervals over owners, and attacks per owner."),
    ] = None
    limit: Annotated[int | None, typer.Option(help="Read at most this many records of each corpus.")] = None
    template: Annotated[
        str | None,
        typer.Option(help="What the model reads, with columns in braces, such as {text}; as stored unless given."),
    ] = None
    encoder_input: Annotated[
        str | None, typer.Option(help="What the encoder of an encoder-decoder model reads; as stored unless given.")
    ] = None
    answer_key: Annotated[
        str | None, typer.Option(help="Column of the template that alone is scored; as stored, or all, unless given.")
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(help="Cut texts to this many tokens; as stored, or 256, unless given.")
    ] = None
    eos: Annotated[
        bool | None,
        typer.Option("--eos/--no-eos", help="Close texts that are not cut; as stored, or yes, unless given."),
    ] = None
    dtype: Annotated[DType | None, typer.Option(help="Type to compute in; as trained unless given.")] = None
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu"
    batch_tokens: Annotated[int, typer.Option(help="Tokens computed at once.")] = 2048
    seed: Annotated[int, typer.Option(help="Of neighbours, shots, bootstrap and folds.")] = 0
    bootstrap: Annotated[int, typer.Option(help="Resamples of the texts for each interval.")] = 2000
    confidence: Annotated[float, typer.Option(help="Of every interval and bound.")] = 0.95
    neighbours: Annotated[int, typer.Option(help="Neighbours of each text.")] = 25
    paraphrases: Annotated[int, typer.Option(help="Paraphrases of each text, for spv.")] = 10
    shots: Annotated[int, typer.Option(help="Non-members in the prefix, for recall.")] = 10
    candidates: Annotated[int, typer.Option(help="Other secrets a canary is ranked among.")] = 1000
    samples: Annotated[int, typer.Option(help="Continuations drawn for each canary, and for each text by samia.")] = 10
    places: Annotated[int, typer.Option(help="Places of each text at which a server is asked for the next token.")] = 64
    cache: Annotated[Path | None, typer.Option(help="Where passes are kept; OUT/cache unless given.")] = None
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Use and fill the cache.")] = True
    api_key_env: Annotated[str, typer.Option(help="Environment variable with a server's key.")] = "OPENAI_API_KEY"
    timeout: Annotated[float, typer.Option(help="Seconds a request to a server may take.")] = 60.0
    show_texts: Annotated[bool, typer.Option("--show-texts", help="Put the texts into scores.parquet.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    @property
    def settings(self) -> AuditOptions:
        """The options as `reticent.audit` takes them."""
        return AuditOptions(
            reference=self.reference,
            mlm=self.mlm,
            shadows=tuple(self.shadow or ()),
            world=self.world,
            canaries=self.canaries,
            model=self.model,
            template=self.template,
            encoder_input=self.encoder_input,
            answer_key=self.answer_key,
            max_tokens=self.max_tokens,
            eos=self.eos,
            dtype=None if self.dtype is None else self.dtype.value,
            device=self.device,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            bootstrap=self.bootstrap,
            confidence=self.confidence,
            neighbours=self.neighbours,
            paraphrases=self.paraphrases,
            shots=self.shots,
            candidates=self.candidates,
            samples=self.samples,
            places=self.places,
            cache=self.cache,
            resume=self.resume,
            api_key_env=self.api_key_env,
            timeout=self.timeout,
            show_texts=self.show_texts,
        )


_LONG: Final[dict[str, Any]] = {"__all__": {"roc", "histogram", "missing"}}
_LONG_FIELDS: Final[dict[str, Any]] = {"attacks": _LONG, "owners": {"attacks": _LONG}}


@takes_options(AuditCommand)
def audit(options: AuditCommand) -> None:
    """Membership inference, exposure and extraction with intervals; texts appear by their hashes alone."""
    from reticent.api.audits import audit as run_audit
    from reticent.cli.progress import WorkProgress
    from reticent.reports.audit_summary import summary_sentences

    try:
        with WorkProgress("texts") as progress:
            finished = run_audit(
                options.target,
                members=options.members,
                nonmembers=options.nonmembers,
                attacks=options.attacks,
                text_key=options.text_key,
                nonmember_text_key=options.nonmember_text_key,
                unit_key=options.unit_key,
                limit=options.limit,
                out=options.out,
                options=options.settings,
                progress=progress,
            )
    except KeyboardInterrupt:
        raise InterruptedRunError(f"the same command resumes from here ({options.out})") from None
    result = finished.result
    if options.as_json:
        shown = result.model_dump(mode="json", exclude=_LONG_FIELDS)
        print_json({"out": str(options.out), "summary": list(summary_sentences(result)), **shown})
    else:
        _print(result, options.out)
    if result.incomplete:
        raise PartialAuditError(result.incomplete[0])


def _print(result: "AuditResult", out: Path) -> None:
    from rich.table import Table

    from reticent.reports.audit_summary import summary_sentences

    for warning in result.warnings:
        notes.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("attack", "AUC", "TPR at 1 % FPR", "texts"):
        table.add_column(name, justify="left" if name == "attack" else "right")
    if result.blind is not None:
        table.add_row("(without any model)", _interval(result.blind.auc), "", "")
    for attack in result.attacks:
        table.add_row(
            attack.name, _interval(attack.auc), _rate(attack), f"{attack.num_members}+{attack.num_nonmembers}"
        )
    console.print(table, markup=False)
    for skipped in result.skipped:
        notes.print(f"left out: {skipped.name}: {skipped.reason}", highlight=False, markup=False, soft_wrap=True)
    for group in result.canaries:
        bits = group.mean_exposure_bits
        planted = f"planted {_times(group.repetitions)}" if group.repetitions else "held out"
        console.print(
            f"{group.num_canaries} canaries ({group.kind}) {planted}: "
            f"exposure {'-' if bits is None else f'{bits:.1f}'} bits{' by choice' * (group.exposure_by == 'choice')}, "
            f"extracted {_share(group.extracted_greedy)} greedily, {_share(group.extracted_sampled)} sampled",
            highlight=False,
            soft_wrap=True,
        )
    if result.one_run is not None:
        console.print(
            "ε from this one run, a canary with all its copies exchanged for its twin: at least "
            f"{result.one_run.epsilon:.2f} at {result.one_run.confidence:.0%} confidence",
            highlight=False,
            soft_wrap=True,
        )
    for sentence in summary_sentences(result):
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    notes.print(f"report: {out / 'report.html'}", highlight=False, markup=False, soft_wrap=True)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _interval(estimate: "Estimate") -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _rate(attack: "AttackResult") -> str:
    tpr = attack.tpr_at(0.01)
    return "too few texts" if tpr is None else _interval(tpr)


def _share(estimate: "Estimate | None") -> str:
    return "-" if estimate is None else f"{estimate.value:.0%}"
