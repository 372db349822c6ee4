"""`reticent adapt`: adapt one model to a corpus, by any of ten techniques, and write down who was a member."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reticent.cli.output import console, facts, print_json
from reticent.cli.worlds import DType, UnitKey
from reticent.errors import InterruptedRunError, InvalidValueError

if TYPE_CHECKING:
    from reticent.training.adapted_folder import AdaptedFolder, AdaptManifest
    from reticent.training.trainer import AdaptRequest

TECHNIQUES = "full, lora, adapter-h, adapter-p, parallel, prefix, p-tuning, prompt, ia3, icl"


def adapt(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="JSONL, CSV, Parquet or text, also .gz; or a folder of texts.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    technique: Annotated[str, typer.Option(help=f"One of {TECHNIQUES}.")],
    model: Annotated[
        str, typer.Option(help="Base model: smollm2-135m, a folder, a .gguf file or a hub id.")
    ] = "smollm2-135m",
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text",
    unit_key: UnitKey = None,
    limit: Annotated[int | None, typer.Option(help="Read at most this many records.")] = None,
    heldout_count: Annotated[
        int | None, typer.Option(help="Hold out this many records as non-members for the audit.")
    ] = None,
    heldout_fraction: Annotated[float, typer.Option(help="Hold out this share of the records instead.")] = 0.0,
    val_fraction: Annotated[
        float, typer.Option(help="Share of the records to measure a validation loss on; not members.")
    ] = 0.0,
    demonstrations: Annotated[
        int | None, typer.Option(help="For icl: how many records stand before every text; they are the members.")
    ] = None,
    split_seed: Annotated[int, typer.Option(help="Public seed that draws who is a member.")] = 0,
    template: Annotated[str, typer.Option(help="What the model reads, with {text} where the text stands.")] = "{text}",
    encoder_input: Annotated[str, typer.Option(help="What the encoder of an encoder-decoder model reads.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Cut texts to this many tokens.")] = 256,
    eos: Annotated[bool, typer.Option("--eos/--no-eos", help="Close texts that are not cut.")] = True,
    epochs: Annotated[int, typer.Option(help="Passes over the members.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Records a step takes.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-4,
    dtype: Annotated[DType, typer.Option(help="Type to compute in.")] = DType.FLOAT32,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Use less memory and more time.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Public seed of order, first weights and dropout.")] = 0,
    rank: Annotated[int, typer.Option(help="LoRA rank.")] = 8,
    alpha: Annotated[float | None, typer.Option(help="LoRA alpha; twice the rank unless given.")] = None,
    target_modules: Annotated[
        str, typer.Option(help="LoRA: comma-separated module names, or `attention`, or `all-linear`.")
    ] = "attention",
    dropout: Annotated[float, typer.Option(help="Dropout of LoRA and bottleneck adapters.")] = 0.0,
    bottleneck: Annotated[int, typer.Option(help="Width of adapter-h, adapter-p and parallel.")] = 256,
    prefix_tokens: Annotated[int, typer.Option(help="Length of the prefix.")] = 30,
    p_tuning_tokens: Annotated[int, typer.Option(help="Virtual tokens of p-tuning.")] = 20,
    prompt_tokens: Annotated[int, typer.Option(help="Virtual tokens of prompt.")] = 8,
    dp_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Train with differential privacy to at most this ε a record: full, lora, prefix. The noise "
            "multiplier is never below 0.25."
        ),
    ] = None,
    dp_delta: Annotated[float | None, typer.Option(help="Its δ; below one over the number of members.")] = None,
    dp_clip: Annotated[float, typer.Option(help="Norm that each record's gradient is clipped to.")] = 1.0,
    dp_records_at_once: Annotated[int, typer.Option(help="Records whose gradients are in memory together.")] = 8,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, …")] = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted training.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Adapt a model to a private corpus, and write down which texts were members, held out, or neither."""
    options = dict(locals())
    del options["as_json"], options["resume"]
    request = _request(options)
    adapted = _run(request, resume=resume)
    if as_json:
        print_json({"folder": str(out), **adapted.manifest.model_dump(mode="json")})
    else:
        console.print(facts(_rows(adapted)))


def _request(options: dict[str, Any]) -> "AdaptRequest":
    """The options as validated settings.

    Raises:
        InvalidValueError: one is outside its range; the message names it.
    """
    from reticent._settings import readable_settings
    from reticent.text.template import TextTemplate
    from reticent.training.settings import TechniqueSettings
    from reticent.training.single_settings import PrivacySettings, SingleTrainingSettings, SplitSettings
    from reticent.training.techniques.registry import parse_technique
    from reticent.training.trainer import AdaptRequest

    if (options["dp_epsilon"] is None) != (options["dp_delta"] is None):
        raise InvalidValueError("give --dp-epsilon and --dp-delta together: an ε means nothing without its δ")
    rank, modules = options["rank"], options["target_modules"].split(",")
    with readable_settings():
        settings = TechniqueSettings(
            rank=rank,
            alpha=2.0 * rank if options["alpha"] is None else options["alpha"],
            target_modules=tuple(name.strip() for name in modules if name.strip()),
            **_choose_settings(options, "dropout", "bottleneck", "prefix_tokens", "p_tuning_tokens", "prompt_tokens"),
        )
        training = SingleTrainingSettings(
            dtype=options["dtype"].value,
            **_choose_settings(options, "epochs", "batch_size", "learning_rate", "seed", "gradient_checkpointing"),
        )
        split = SplitSettings(
            seed=options["split_seed"],
            **_choose_settings(options, "heldout_count", "heldout_fraction", "val_fraction", "demonstrations"),
        )
        template = TextTemplate(
            text=options["template"], add_eos=options["eos"], **_choose_settings(options, "encoder_input", "max_tokens")
        )
        privacy = None
        if options["dp_epsilon"] is not None:
            privacy = PrivacySettings(
                epsilon=options["dp_epsilon"],
                delta=options["dp_delta"],
                max_gradient_norm=options["dp_clip"],
                records_at_once=options["dp_records_at_once"],
            )
    return AdaptRequest(
        technique=parse_technique(options["technique"]),
        settings=settings,
        template=template,
        split=split,
        training=training,
        privacy=privacy,
        **_choose_settings(options, "corpus", "model", "out", "text_key", "unit_key", "limit", "device"),
    )


def _run(request: "AdaptRequest", *, resume: bool) -> "AdaptedFolder":
    from reticent.cli.progress import WorkProgress
    from reticent.training.trainer import adapt as adapt_model

    try:
        with WorkProgress() as progress:
            return adapt_model(request, progress, resume=resume)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"the same command with --resume goes on from here ({request.out})") from None


def _choose_settings(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names}


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
        rows["differential privacy"] = f"ε = {dp.epsilon:.4g}, δ = {dp.delta:g}, for one record added or removed"
        rows["accountant"] = dp.accountant
        rows["noise"] = f"multiplier {dp.noise_multiplier:.4g}, {dp.num_steps} steps at rate {dp.sample_rate:.4g}"
    return rows
