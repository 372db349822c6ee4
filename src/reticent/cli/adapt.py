"""`reticent adapt`: adapt one model to a corpus, by any of ten techniques, and write down who was a member."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.cli.command_options import split_names, takes_options
from reticent.cli.output import console, facts, print_json
from reticent.cli.worlds import AnswerKey, DType, Template, UnitKey
from reticent.errors import InterruptedRunError, InvalidValueError

if TYPE_CHECKING:
    from reticent.text.template import TextTemplate
    from reticent.training.adapted_folder import AdaptedFolder, AdaptManifest
    from reticent.training.settings import TechniqueSettings
    from reticent.training.single_settings import PrivacySettings, SingleTrainingSettings, SplitSettings
    from reticent.training.trainer import AdaptRequest

TECHNIQUES = "full, lora, adapter-h, adapter-p, parallel, prefix, p-tuning, prompt, ia3, icl"


@dataclass(frozen=True)
class AdaptCommand:
    """The options of `reticent adapt`."""

    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="JSONL, CSV, Parquet or text, also .gz; or a folder of texts.")
    ]
    out: Annotated[Path, typer.Option(help="The folder to make.")]
    technique: Annotated[str, typer.Option(help=f"One of {TECHNIQUES}.")]
    model: Annotated[str, typer.Option(help="Base model: smollm2-135m, a folder, a .gguf file or a hub id.")] = (
        "smollm2-135m"
    )
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text"
    unit_key: UnitKey = None
    limit: Annotated[int | None, typer.Option(help="Read at most this many records.")] = None
    heldout_count: Annotated[
        int | None, typer.Option(help="Hold out this many records as non-members for the audit.")
    ] = None
    heldout_fraction: Annotated[float, typer.Option(help="Hold out this share of the records instead.")] = 0.0
    val_fraction: Annotated[
        float, typer.Option(help="Share of the records to measure a validation loss on; not members.")
    ] = 0.0
    demonstrations: Annotated[
        int | None, typer.Option(help="For icl: how many records stand before every text; they are the members.")
    ] = None
    split_seed: Annotated[int, typer.Option(help="Public seed that draws who is a member.")] = 0
    template: Template = None
    encoder_input: Annotated[
        str, typer.Option(help="What the encoder of an encoder-decoder model reads, also with columns in braces.")
    ] = ""
    answer_key: AnswerKey = ""
    max_tokens: Annotated[int, typer.Option(help="Cut texts to this many tokens.")] = 256
    eos: Annotated[bool, typer.Option("--eos/--no-eos", help="Close texts that are not cut.")] = True
    epochs: Annotated[int, typer.Option(help="Passes over the members.")] = 1
    batch_size: Annotated[int, typer.Option(help="Records a step takes.")] = 8
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-4
    dtype: Annotated[DType, typer.Option(help="Type to compute in.")] = DType.FLOAT32
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Use less memory and more time.")
    ] = False
    seed: Annotated[int, typer.Option(help="Public seed of order, first weights and dropout.")] = 0
    rank: Annotated[int, typer.Option(help="LoRA rank.")] = 8
    alpha: Annotated[float | None, typer.Option(help="LoRA alpha; twice the rank unless given.")] = None
    target_modules: Annotated[
        str, typer.Option(help="LoRA: comma-separated module names, or `attention`, or `all-linear`.")
    ] = "attention"
    dropout: Annotated[float, typer.Option(help="Dropout of LoRA and bottleneck adapters.")] = 0.0
    bottleneck: Annotated[int, typer.Option(help="Width of adapter-h, adapter-p and parallel.")] = 256
    prefix_tokens: Annotated[int, typer.Option(help="Length of the prefix.")] = 30
    p_tuning_tokens: Annotated[int, typer.Option(help="Virtual tokens of p-tuning.")] = 20
    prompt_tokens: Annotated[int, typer.Option(help="Virtual tokens of prompt.")] = 8
    dp_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Train with differential privacy to at most this ε a record: full, lora, prefix. The noise "
            "multiplier is never below 0.25."
        ),
    ] = None
    dp_delta: Annotated[float | None, typer.Option(help="Its δ; below one over the number of members.")] = None
    dp_clip: Annotated[float, typer.Option(help="Norm that each record's gradient is clipped to.")] = 1.0
    dp_per_unit: Annotated[
        bool, typer.Option("--dp-per-unit", help="Protect whole units of --unit-key, all records of one together.")
    ] = False
    dp_records_at_once: Annotated[int, typer.Option(help="Records whose gradients are in memory together.")] = 8
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, …")] = "cpu"
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted training.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    @property
    def request(self) -> "AdaptRequest":
        """The options as validated settings.

        Raises:
            InvalidValueError: one is outside its range; the message names it.
        """
        from reticent._settings import readable_settings
        from reticent.training.techniques.registry import parse_technique
        from reticent.training.trainer import AdaptRequest

        privacy = self._privacy
        with readable_settings():
            return AdaptRequest(
                corpus=self.corpus,
                model=self.model,
                out=self.out,
                technique=parse_technique(self.technique),
                settings=self._technique_settings,
                template=self._text_template,
                split=self._split,
                training=self._training,
                privacy=privacy,
                text_key=self.text_key,
                unit_key=self.unit_key,
                limit=self.limit,
                device=self.device,
            )

    @property
    def _technique_settings(self) -> "TechniqueSettings":
        from reticent.training.settings import TechniqueSettings

        return TechniqueSettings(
            rank=self.rank,
            alpha=2.0 * self.rank if self.alpha is None else self.alpha,
            target_modules=split_names(self.target_modules),
            dropout=self.dropout,
            bottleneck=self.bottleneck,
            prefix_tokens=self.prefix_tokens,
            p_tuning_tokens=self.p_tuning_tokens,
            prompt_tokens=self.prompt_tokens,
        )

    @property
    def _training(self) -> "SingleTrainingSettings":
        from reticent.training.single_settings import SingleTrainingSettings

        return SingleTrainingSettings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            dtype=self.dtype.value,
            gradient_checkpointing=self.gradient_checkpointing,
            seed=self.seed,
        )

    @property
    def _split(self) -> "SplitSettings":
        from reticent.training.single_settings import SplitSettings

        return SplitSettings(
            seed=self.split_seed,
            heldout_count=self.heldout_count,
            heldout_fraction=self.heldout_fraction,
            val_fraction=self.val_fraction,
            demonstrations=self.demonstrations,
        )

    @property
    def _text_template(self) -> "TextTemplate":
        from reticent.text.template import template_for

        return template_for(
            self.corpus,
            self.text_key,
            self.template,
            self.answer_key,
            encoder_input=self.encoder_input,
            max_tokens=self.max_tokens,
            add_eos=self.eos,
        )

    @property
    def _privacy(self) -> "PrivacySettings | None":
        from reticent._settings import readable_settings
        from reticent.training.single_settings import PrivacySettings

        if (self.dp_epsilon is None) != (self.dp_delta is None):
            raise InvalidValueError("give --dp-epsilon and --dp-delta together: an ε means nothing without its δ")
        if self.dp_epsilon is None or self.dp_delta is None:
            return None
        with readable_settings():
            if self.dp_per_unit and self.unit_key is None:
                raise InvalidValueError("--dp-per-unit needs --unit-key, which says whose each record is")
            return PrivacySettings(
                epsilon=self.dp_epsilon,
                delta=self.dp_delta,
                max_gradient_norm=self.dp_clip,
                records_at_once=self.dp_records_at_once,
                per_unit=self.dp_per_unit,
            )


@takes_options(AdaptCommand)
def adapt(options: AdaptCommand) -> None:
    """Adapt a model to a private corpus, and write down which texts were members, held out, or neither."""
    adapted = _run(options.request, resume=options.resume)
    if options.as_json:
        print_json({"folder": str(options.out), **adapted.manifest.model_dump(mode="json")})
    else:
        console.print(facts(_rows(adapted)))


def _run(request: "AdaptRequest", *, resume: bool) -> "AdaptedFolder":
    from reticent.cli.progress import WorkProgress
    from reticent.training.trainer import adapt as adapt_model

    try:
        with WorkProgress() as progress:
            return adapt_model(request, progress, resume=resume)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"the same command with --resume continues from here ({request.out})") from None


def _rows(adapted: "AdaptedFolder") -> dict[str, str]:
    manifest: AdaptManifest = adapted.manifest
    counts, base = manifest.counts, manifest.base
    rows = {
        "folder": str(adapted.folder),
        "base": f"{base.name} ({base.class_name}, {base.content_hash[:12]})",
        "technique": f"{manifest.technique}, {counts.trained_parameters:,} parameters",
        "members": f"{counts.members:,} records, {counts.tokens:,} tokens, {counts.truncated} cut",
        "held out, validation": f"{counts.heldout:,}, {counts.validation:,} records",
        "merged near-duplicates": f"{counts.merged_units:,} units, {counts.merged_once_cut:,} of them once cut",
    }
    if manifest.epochs:
        last = manifest.epochs[-1]
        for name, value in (("training loss", last.training), ("validation loss", last.validation)):
            if value is not None:
                rows[name] = f"{value:.4f} nats a token"
    if manifest.dp is not None:
        dp = manifest.dp
        rows["differential privacy"] = f"ε = {dp.epsilon:.4g}, δ = {dp.delta:g}, for one {dp.protects} added or removed"
        rows["accountant"] = dp.accountant
        rows["noise"] = f"multiplier {dp.noise_multiplier:.4g}, {dp.num_steps} steps at rate {dp.sample_rate:.4g}"
    return rows
