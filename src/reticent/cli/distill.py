"""`reticent distill`: a model to publish, trained on public texts and on private tokens released on them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.api.deployments import DEFAULT_STEP_BUDGET
from reticent.cli.command_options import split_names, takes_options
from reticent.cli.deployment import Charge, DatabaseUrl, Release, RunArgument, StepBudget, TotalBudget
from reticent.cli.output import bound_facts, console, facts, format_nats, print_json
from reticent.cli.worlds import DType
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.errors import InterruptedRunError
from reticent.pac.mechanism import DEFAULT_RELEASE

if TYPE_CHECKING:
    from reticent.api.distillation import DistilledFolder, DistillRequest
    from reticent.distillation.student import StudentSettings

_LEARNING_RATES = {"lora": 1e-3, "full": 5e-5}


@dataclass(frozen=True)
class DistillCommand:
    """The options of `reticent distill`."""

    run: RunArgument
    prompts: Annotated[Path, typer.Option(help="Public texts of the corpus's kind; none may be in the corpus.")]
    tokens: Annotated[int, typer.Option(help="Release at most this many tokens.")]
    out: Annotated[Path, typer.Option(help="The folder to make.")]
    mode: Annotated[
        str, typer.Option(help="label: a token after each position of a text; continue: tokens behind its beginning.")
    ] = "label"
    prompt_tokens: Annotated[int, typer.Option(help="For continue: tokens of each text that are read.")] = 16
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text"
    limit: Annotated[int | None, typer.Option(help="Read at most this many public texts.")] = None
    held_out: Annotated[
        int, typer.Option(help="Keep this many public texts, the first, out of training to measure utility on.")
    ] = 0
    step_budget: StepBudget = None
    total_budget: TotalBudget = None
    charging: Charge = None
    release: Release = None
    decoder: Annotated[Decoder, typer.Option(help="How worlds vote.")] = Decoder.GUMBEL
    temperature: Annotated[float, typer.Option(help="Of the gumbel decoder.")] = 1.0
    candidates: Annotated[int, typer.Option(help="Tokens the public model nominates at each step, k.")] = 200
    technique: Annotated[str, typer.Option(help="Of the student: lora or full.")] = "lora"
    rank: Annotated[int, typer.Option(help="LoRA rank of the student.")] = 8
    target_modules: Annotated[
        str, typer.Option(help="LoRA: comma-separated module names, or `attention`, or `all-linear`.")
    ] = "all-linear"
    epochs: Annotated[int, typer.Option(help="Passes of the student over its texts.")] = 2
    batch_size: Annotated[int, typer.Option(help="Texts a step takes.")] = 8
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate of the student.", show_default="1e-3, full: 5e-5")
    ] = None
    public_text: Annotated[
        bool, typer.Option("--public-text/--no-public-text", help="Learn the public texts' own tokens as well.")
    ] = True
    seed: Annotated[int, typer.Option(help="Public seed of the student's training.")] = 0
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Keep what was released in released.jsonl.")] = False
    max_tokens: Annotated[int | None, typer.Option(help="Cut texts; as the worlds' texts unless given.")] = None
    model: Annotated[str | None, typer.Option("--model", help="Where the base model is, if it has moved.")] = None
    dtype: Annotated[DType | None, typer.Option(help="Type to compute in; as trained unless given.")] = None
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu"
    database_url: DatabaseUrl = None
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted distillation.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    @property
    def request(self) -> "DistillRequest":
        """The options as validated settings.

        Raises:
            InvalidValueError: one is outside its range; the message names it.
        """
        from reticent.api.distillation import DistillRequest
        from reticent.api.settings import parse_choice
        from reticent.distillation.releases import ReleaseMode

        return DistillRequest(
            run=self.run,
            prompts=self.prompts,
            out=self.out,
            num_tokens=self.tokens,
            mode=parse_choice("mode", ReleaseMode, self.mode),
            text_key=self.text_key,
            limit=self.limit,
            prompt_tokens=self.prompt_tokens,
            held_out=self.held_out,
            decoding=DecodingSettings(
                self.decoder,
                DEFAULT_STEP_BUDGET if self.step_budget is None else self.step_budget,
                self.temperature,
                self.candidates,
                self.release or DEFAULT_RELEASE,
            ),
            total_budget=self.total_budget,
            charging=self.charging,
            student=self._student,
            keep_text=self.keep_text,
            max_tokens=self.max_tokens,
            model=self.model,
            dtype=None if self.dtype is None else self.dtype.value,
            device=self.device,
            database_url=self.database_url,
        )

    @property
    def _student(self) -> "StudentSettings":
        from reticent._settings import readable_settings
        from reticent.distillation.student import StudentSettings
        from reticent.training.settings import TechniqueSettings
        from reticent.training.single_settings import SingleTrainingSettings
        from reticent.training.techniques.registry import parse_technique

        technique = parse_technique(self.technique)
        rate = _LEARNING_RATES.get(technique.value, 1e-3) if self.learning_rate is None else self.learning_rate
        with readable_settings():
            return StudentSettings(
                technique,
                TechniqueSettings(
                    rank=self.rank, alpha=2.0 * self.rank, target_modules=split_names(self.target_modules)
                ),
                SingleTrainingSettings(
                    epochs=self.epochs,
                    batch_size=self.batch_size,
                    learning_rate=rate,
                    seed=self.seed,
                    dtype="float32" if self.dtype is None else self.dtype.value,
                ),
                self.public_text,
            )


@takes_options(DistillCommand)
def distill(options: DistillCommand) -> None:
    """Label or continue public texts with a run's worlds, every token through the ledger, and train a student on them.

    The student needs no ledger any more. What it tells of the realised world is bounded by what the ledger was charged
    until its last token.
    """
    from reticent.api.distillation import distill as run_distillation
    from reticent.cli.progress import WorkProgress

    request = options.request
    try:
        with WorkProgress() as progress:
            distilled = run_distillation(request, progress, resume=options.resume)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"the same command with --resume continues from here ({options.out})") from None
    if options.as_json:
        print_json({"folder": str(options.out), **distilled.record.model_dump(mode="json")})
    else:
        console.print(facts(_rows(distilled, options.out)))


def distill_report(
    student: Annotated[Path, typer.Argument(metavar="STUDENT", help="A folder of `reticent distill`.")],
    run: Annotated[Path, typer.Option(help="The run that it was distilled from.")],
    corpus: Annotated[Path, typer.Option(help="The private corpus of that run.")],
    nonmembers: Annotated[Path, typer.Option(help="Private texts of the same kind that are not in it.")],
    out: Annotated[Path, typer.Option(help="Folder for the report; not inside the student's.")],
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text",
    limit: Annotated[int | None, typer.Option(help="Read at most this many records of each.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the base model is, if it has moved.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a student on private texts, for the operator alone: what it is worth there, and what it gives away.

    These figures are a release of their own, which no ledger counts: do not publish them with the student.
    """
    from reticent.api.student_report import StudentReportRequest, report_on_student
    from reticent.cli.progress import WorkProgress

    request = StudentReportRequest(student, run, corpus, nonmembers, out, text_key, limit, model, device)
    with WorkProgress("texts") as progress:
        report = report_on_student(request, progress)
    utility = report.utility
    if as_json:
        share = utility.share_of_full_gain
        print_json({**utility.model_dump(mode="json"), "share_of_full_gain": share, "presence": report.audit.rows()})
        return
    losses = {"public model": utility.base, "student": utility.student, "worlds": utility.worlds}
    rows = {name: f"{loss:.4f} nats a token" for name, loss in losses.items()}
    if utility.full is not None:
        rows["adapter on all records"] = f"{utility.full:.4f} nats a token"
    for row in report.audit.rows():
        rows[f"in the corpus? {row['attack']}"] = (
            f"AUC {row['auc']:.3f} ({row['auc_low']:.3f} to {row['auc_high']:.3f})"
        )
    console.print(facts(rows))


def _rows(distilled: "DistilledFolder", out: Path) -> dict[str, str]:
    record = distilled.record
    bound, loss = record.bound, record.public_loss
    rows = {
        "folder": str(out),
        "released": f"{record.num_tokens:,} tokens on {record.num_texts:,} public texts",
        "charged at most": f"{format_nats(bound.nats)}, with all that was released before",
        **bound_facts(bound.half_success, bound.world_success, bound.num_worlds),
    }
    if loss is not None:
        rows["public text held out"] = f"{loss.base:.4f} nats a token before, {loss.student:.4f} after"
    return rows
