"""`reticent audit`: attack a model, an adapter, a world of a run or an endpoint, and report how much it gives away."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reticent.cli.output import console, notes, print_json
from reticent.cli.worlds import DType
from reticent.errors import InterruptedRunError, InvalidValueError

if TYPE_CHECKING:
    from reticent.auditing.results import AttackResult, AuditResult, RateAtFpr
    from reticent.auditing.run import AuditRequest
    from reticent.auditing.targets.targets import Target, TargetOptions


def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Model, PEFT or bottleneck folder, hub id, .gguf, output of adapt, run directory, or URL.",
        ),
    ],
    members: Annotated[Path, typer.Option(help="Texts it was trained on; or the whole corpus, see --nonmembers.")],
    out: Annotated[Path, typer.Option(help="Folder for report, scores and cache; the same command goes on.")],
    nonmembers: Annotated[
        Path | None,
        typer.Option(help="Texts it was not trained on. Without it, --members is divided by the target's own lists."),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Model before adaptation; an adapter's own base unless given.")
    ] = None,
    attacks: Annotated[
        str, typer.Option(help="all, or names with commas between; an unknown name is answered with the list.")
    ] = "all",
    mlm: Annotated[
        str | None, typer.Option(help="Masked language model that makes neighbours; the target's base unless given.")
    ] = None,
    shadow: Annotated[
        list[str] | None, typer.Option(help="An output of adapt that serves as a shadow model; may be repeated.")
    ] = None,
    world: Annotated[int | None, typer.Option(help="Audit this world of a run; the others are its shadows.")] = None,
    canaries: Annotated[Path | None, typer.Option(help="canaries.jsonl of `reticent canaries plant`.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Where the base model is, if it has moved; on a server, the model's name.")
    ] = None,
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text",
    limit: Annotated[int | None, typer.Option(help="Read at most this many records of each corpus.")] = None,
    template: Annotated[
        str | None,
        typer.Option(help="What the model reads, with {text} where the text stands; as stored unless given."),
    ] = None,
    encoder_input: Annotated[
        str | None, typer.Option(help="What the encoder of an encoder-decoder model reads; as stored unless given.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Cut texts to this many tokens; as stored, or 256, unless given.")
    ] = None,
    eos: Annotated[
        bool | None,
        typer.Option("--eos/--no-eos", help="Close texts that are not cut; as stored, or yes, unless given."),
    ] = None,
    dtype: Annotated[DType | None, typer.Option(help="Type to compute in; as trained unless given.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu",
    batch_tokens: Annotated[int, typer.Option(help="Tokens computed at once.")] = 2048,
    seed: Annotated[int, typer.Option(help="Of neighbours, shots, bootstrap and folds.")] = 0,
    bootstrap: Annotated[int, typer.Option(help="Resamples of the texts for each interval.")] = 2000,
    confidence: Annotated[float, typer.Option(help="Of every interval and bound.")] = 0.95,
    neighbours: Annotated[int, typer.Option(help="Neighbours of each text.")] = 25,
    paraphrases: Annotated[int, typer.Option(help="Paraphrases of each text, for spv.")] = 10,
    shots: Annotated[int, typer.Option(help="Non-members in the prefix, for recall.")] = 10,
    candidates: Annotated[int, typer.Option(help="Other secrets a canary is ranked among.")] = 1000,
    samples: Annotated[int, typer.Option(help="Continuations drawn for each canary.")] = 10,
    cache: Annotated[Path | None, typer.Option(help="Where passes are kept; OUT/cache unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Use and fill the cache.")] = True,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with a server's key.")] = "OPENAI_API_KEY",
    timeout: Annotated[float, typer.Option(help="Seconds a request to a server may take.")] = 60.0,
    show_texts: Annotated[bool, typer.Option("--show-texts", help="Put the texts into scores.parquet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Membership inference, exposure and extraction with intervals; texts appear by their hashes alone."""
    result = _run(dict(locals()))
    if as_json:
        shown = result.model_dump(mode="json", exclude={"attacks": {"__all__": {"roc", "histogram", "missing"}}})
        print_json({"out": str(out), **shown})
    else:
        _print(result, out)


def _run(options: dict[str, Any]) -> "AuditResult":
    """Open, audit, report; the result is on disk before it is rendered."""
    from reticent.auditing.run import run_audit
    from reticent.cli.progress import WorkProgress
    from reticent.reports.render import write_audit_report

    out = options["out"]
    try:
        with ExitStack() as stack:
            options["cache"] = _cache(options, stack)
            progress = stack.enter_context(WorkProgress("texts"))
            result = run_audit(_request(options, progress), progress)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"the same command goes on from here ({options['out']})") from None
    write_audit_report(result, out)
    return result


def _cache(options: dict[str, Any], stack: ExitStack) -> Path:
    if not options["resume"]:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reticent-audit-")))
    folder: Path = options["cache"] or options["out"] / "cache"
    return folder


def _request(options: dict[str, Any], progress: Any) -> "AuditRequest":
    """Check the options that need no model, then open the target."""
    from reticent._validate import integer_in_range, open_probability, positive_finite
    from reticent.auditing.attacks.registry import parse_attacks
    from reticent.auditing.canaries.canary_audit import CanarySettings
    from reticent.auditing.canaries.planting import read_canaries
    from reticent.auditing.inputs.gathering import GatheringSettings
    from reticent.auditing.run import AuditRequest

    attacks = parse_attacks(options["attacks"])
    seed, confidence = (
        integer_in_range("seed", options["seed"], 0),
        open_probability("confidence", options["confidence"]),
    )
    for name in ("bootstrap", "neighbours", "paraphrases", "shots", "candidates", "batch_tokens"):
        integer_in_range(name, options[name], 1)
    integer_in_range("samples", options["samples"], 0)
    positive_finite("timeout", options["timeout"])
    texts = _read(options, options["members"])
    others = None if options["nonmembers"] is None else _read(options, options["nonmembers"])
    planted = read_canaries(options["canaries"]) if options["canaries"] else ()
    target = _open(options, progress)
    members, nonmembers = (texts, others) if others is not None else _divide_corpus(target, texts, planted, progress)
    return AuditRequest(
        target=target,
        members=members,
        nonmembers=nonmembers,
        attacks=attacks,
        attacks_named=options["attacks"].strip().lower() != "all",
        out=options["out"],
        gathering=GatheringSettings(
            cache=options["cache"],
            seed=seed,
            num_neighbours=options["neighbours"],
            num_paraphrases=options["paraphrases"],
            num_shots=options["shots"],
            mlm=options["mlm"],
            shadows=tuple(options["shadow"] or ()),
        ),
        seed=seed,
        confidence=confidence,
        num_resamples=options["bootstrap"],
        canaries=planted,
        canary_settings=CanarySettings(options["candidates"], options["samples"], seed, confidence),
        show_texts=options["show_texts"],
        settings={
            name: None if options[name] is None else str(options[name])
            for name in ("members", "nonmembers", "text_key", "limit", "canaries", "mlm", "world", "device")
        },
    )


def _read(options: dict[str, Any], path: Path) -> list[str]:
    from reticent.text.corpus import read_corpus

    corpus = read_corpus(path, text_key=options["text_key"], limit=options["limit"])
    return [record.text for record in corpus.records]


def _open(options: dict[str, Any], progress: Any) -> "Target":
    from reticent.auditing.targets.targets import TargetKind, open_target, target_kind

    chosen = _target_options(options)
    kind = target_kind(options["target"])
    if kind is TargetKind.RUN and options["world"] is not None:
        from reticent.api.world_target import open_world

        return open_world(Path(options["target"]), options["world"], chosen, options["cache"], progress)
    if options["world"] is not None:
        raise InvalidValueError(f"--world names a world of a run directory, and {options['target']} is none")
    return open_target(options["target"], chosen)


def _target_options(options: dict[str, Any]) -> "TargetOptions":
    import torch

    from reticent.auditing.targets.endpoint import EndpointSettings
    from reticent.auditing.targets.targets import TargetOptions

    template = {"text": options["template"], "encoder_input": options["encoder_input"]}
    template |= {"max_tokens": options["max_tokens"], "add_eos": options["eos"]}
    return TargetOptions(
        model=options["model"],
        reference=options["reference"],
        template={name: value for name, value in template.items() if value is not None},
        dtype=None if options["dtype"] is None else getattr(torch, options["dtype"].value),
        device=options["device"],
        batch_tokens=options["batch_tokens"],
        endpoint=EndpointSettings("", api_key_variable=options["api_key_env"], timeout_s=options["timeout"]),
    )


def _divide_corpus(target: "Target", texts: list[str], planted: Any, progress: Any) -> tuple[list[str], list[str]]:
    """A corpus divided by the target's own lists; planted canaries are measured apart."""
    from reticent.auditing.inputs.membership import divide_corpus

    if target.member_hashes is None or target.heldout_hashes is None:
        raise InvalidValueError("this target does not say what it was trained on: give --nonmembers as well")
    canaries = {canary.text for canary in planted}
    own = [text for text in texts if text not in canaries]
    members, nonmembers, neither = divide_corpus(own, target.member_hashes, target.heldout_hashes)
    progress.note(f"{len(members)} members, {len(nonmembers)} non-members by the target's lists; {neither} in neither")
    return members, nonmembers


def _print(result: "AuditResult", out: Path) -> None:
    from rich.table import Table

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
            f"exposure {'-' if bits is None else f'{bits:.1f}'} bits, "
            f"extracted {_share(group.extracted_greedy)} greedily, {_share(group.extracted_sampled)} sampled",
            highlight=False,
            soft_wrap=True,
        )
    if result.one_run is not None:
        console.print(
            f"ε from this one run: at least {result.one_run.epsilon:.2f} at {result.one_run.confidence:.0%} confidence",
            highlight=False,
            soft_wrap=True,
        )
    notes.print(f"report: {out / 'report.html'}", highlight=False, markup=False, soft_wrap=True)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _interval(estimate: Any) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _rate(attack: "AttackResult") -> str:
    rate: RateAtFpr | None = next((rate for rate in attack.rates if rate.fpr == 0.01), None)
    return "too few texts" if rate is None or rate.tpr is None else _interval(rate.tpr)


def _share(estimate: Any) -> str:
    return "-" if estimate is None else f"{estimate.value:.0%}"
