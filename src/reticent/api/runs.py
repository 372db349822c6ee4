"""Runs of worlds: building one from private texts, opening one, deploying it.

>>> import reticent
>>> run = reticent.open_run("run")                                          # doctest: +SKIP
>>> run.num_worlds                                                          # doctest: +SKIP
128
"""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from reticent.api.deployments import DEFAULT_STEP_BUDGET, Deployment, DeploymentOptions, LoadedRun
from reticent.api.planning import Nats, to_nats
from reticent.api.progress import SilentProgress
from reticent.api.settings import DTypeName, parse_choice
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.errors import InvalidValueError
from reticent.guarantees import DEFAULT_GUARANTEE, Guarantee
from reticent.pac.charging import ChargingRule
from reticent.pac.mechanism import DEFAULT_RELEASE, ReleaseMechanism
from reticent.protocols import Progress
from reticent.training.presets import PRESETS, Preset
from reticent.worlds.assignment import Assignment

if TYPE_CHECKING:
    from reticent.api.corpus_deployments import CorpusDeployment
    from reticent.text.corpus import Corpus
    from reticent.text.in_memory import TextRows
    from reticent.text.template import TextTemplate
    from reticent.training.settings import LoraSettings, TrainingSettings
    from reticent.worlds.manifest import Manifest
    from reticent.worlds.places import Capacity

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Settings of a build; every one has a default.

    Attributes:
        preset: where epochs, learning rate, rank and adapted blocks stand unless given: `plain`, `stable` or `corpus`;
            `corpus` for that guarantee, else `plain`.
        epochs: passes over each world's records.
        batch_size: records of a world per step, about.
        learning_rate: the peak.
        max_tokens: cut records to this many tokens.
        template: what the model reads of a record, with columns in braces; `{text}` is that of `text_key`, and
            `{messages}` a conversation; unless given it suits the columns of `messages`, `prompt` and `completion`, or
            `instruction`, `input` and `output`, where there is no text.
        answer_key: the column of the template that alone is trained on; all of it unless given.
        rank: LoRA's rank.
        alpha: LoRA's alpha; twice the rank unless given.
        target_modules: last parts of module paths, or `attention`, or `all-linear`.
        adapt_layers: `all` blocks, or the last K as `top:K`: faster to train and serve.
        dtype: type to compute in.
        device: `cpu`, `cuda`, …
        seed: public; orders records and initialises adapters.
        membership_seed: public; assigns units to worlds.
        assignment: `overlapping` worlds, or `disjoint` shards, from which nothing is released.
        guarantee: what released tokens will hide: `realised-world`, which half of the corpus is real; or `corpus`,
            whether a unit is in it at all.
        places: for the corpus guarantee, places of a world: with the number of worlds the declared, public capacity.
        unit_records: for the corpus guarantee, records of a unit that its place holds; further ones are left out.
        worlds_at_once: worlds trained in one batched pass; chosen to fit unless given.
        compile: compile training's element-wise work; where it pays unless given.
    """

    preset: Preset | str | None = None
    epochs: int | None = None
    batch_size: int = 8
    learning_rate: float | None = None
    max_tokens: int = 256
    template: str | None = None
    answer_key: str = ""
    rank: int | None = None
    alpha: float | None = None
    target_modules: tuple[str, ...] = ("attention",)
    adapt_layers: str | None = None
    dtype: DTypeName = "float32"
    device: str = "cpu"
    seed: int = 0
    membership_seed: int = 0
    assignment: Assignment | str = Assignment.OVERLAPPING
    guarantee: Guarantee | str = DEFAULT_GUARANTEE
    places: int | None = None
    unit_records: int = 1
    worlds_at_once: int | None = None
    compile: bool | None = None


@dataclass(frozen=True)
class Run:
    """A finished run directory: m worlds' adapters over one base.

    Attributes:
        folder: the run directory.
        manifest: a record of what it holds, from which corpus and base, and the hashes of its files.
    """

    folder: Path
    manifest: "Manifest"

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee that tokens released from this run carry; None where nothing may be released."""
        return self.manifest.guarantee

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return self.manifest.num_worlds

    def deploy(
        self,
        *,
        step_budget: Nats = DEFAULT_STEP_BUDGET,
        total_budget: Nats | None = None,
        release: ReleaseMechanism | str = DEFAULT_RELEASE,
        charging: ChargingRule | str | None = None,
        decoder: Decoder | str = Decoder.GUMBEL,
        temperature: float = 1.0,
        candidates: int = 200,
        drafts: int = 0,
        model: str | None = None,
        dtype: DTypeName | None = None,
        device: str = "cpu",
        database_url: str | None = None,
    ) -> Deployment:
        """Open this run's deployment; its secret world is drawn at the first use and stays.

        Args:
            step_budget: b, the most that one token is charged, in nats.
            total_budget: B, the cap over the deployment's life in nats; None for the cap it has, or none.
            release: the mechanism that releases the realised world's vote: `gaussian` or `mixture`.
            charging: the rule by which tokens are charged over the deployment's life: `fixed`, or `dissent`, which
                charges only tokens on which the worlds' votes differ. None for the rule it has; a new one gets `fixed`.
            decoder: the worlds' votes: `gumbel` samples or `greedy` choices.
            temperature: of the Gumbel decoder.
            candidates: k, tokens that the public model nominates at each step.
            drafts: tokens that the public model drafts ahead; changes speed alone.
            model: another place of the base model than the recorded one.
            dtype: type to compute in; as trained unless given.
            device: `cpu`, `cuda`, …
            database_url: place of the ledger; `ledger.sqlite` in the run directory unless given.

        Raises:
            InvalidValueError: a value is out of range, the cap cannot be set, or the deployment has another rule.
            ModelError, RunDirectoryError: the base is missing, the run is damaged, or nothing may be released from it.
            DeploymentStateError, StorageError: the ledger cannot be opened.
        """
        settings = DecodingSettings(
            parse_choice("decoder", Decoder, decoder),
            to_nats(step_budget),
            temperature,
            candidates,
            parse_choice("release", ReleaseMechanism, release),
        )
        options = DeploymentOptions(
            settings=settings,
            total_budget=None if total_budget is None else to_nats(total_budget),
            charging=None if charging is None else parse_choice("charging", ChargingRule, charging),
            drafts=drafts,
            model=model,
            dtype=dtype,
            device=device,
            database_url=database_url,
        )
        return LoadedRun(self.folder, options).deploy()

    def deploy_corpus(
        self,
        *,
        total_epsilon: float | None = None,
        delta: float | None = None,
        membership_success: float | None = None,
        total_rho: float | None = None,
        clip: float | None = None,
        gain: float | None = None,
        temperature: float | None = None,
        candidates: int | None = None,
        drafts: int = 0,
        model: str | None = None,
        dtype: DTypeName | None = None,
        device: str = "cpu",
        database_url: str | None = None,
    ) -> "CorpusDeployment":
        """Open the deployment of a run that carries the corpus guarantee.

        At most one of `total_epsilon`, `membership_success` and `total_rho` is given: the cap over the deployment's
        life, which may be set or lowered later. Clip, gain, temperature and candidates are fixed at the first use; None
        for what the deployment has, or a default.

        Args:
            total_epsilon: ε at `delta`.
            delta: δ, below one over the number of places.
            membership_success: largest success in telling whether a unit is in the corpus, in (½, 1).
            total_rho: ρ.
            clip: c, the most that a world's log-probability counts as other than the public one, in nats.
            gain: g; all worlds move a score by at most w = gc/τ.
            temperature: τ, divides scores.
            candidates: k, tokens that the public model nominates at each step.
            drafts: tokens that the public model drafts ahead; changes speed alone.
            model: another place of the base model than the recorded one.
            dtype: type to compute in; as trained unless given.
            device: `cpu`, `cuda`, …
            database_url: place of the ledger; `ledger.sqlite` in the run directory unless given.

        Raises:
            InvalidValueError: a value is out of range, the cap cannot be set, or other constants were.
            ModelError, RunDirectoryError: the base is missing, the run is damaged, or carries the other guarantee.
            DeploymentStateError, StorageError: the ledger cannot be opened.
        """
        from reticent.api.corpus_deployments import CorpusDeploymentOptions, CorpusTerms, LoadedCorpusRun
        from reticent.dp.plan import CorpusBound

        terms = CorpusTerms(
            bound=CorpusBound(total_rho, total_epsilon, membership_success),
            delta=delta,
            clip=clip,
            gain=gain,
            temperature=temperature,
            candidates=candidates,
        )
        options = CorpusDeploymentOptions(
            terms=terms, drafts=drafts, model=model, dtype=dtype, device=device, database_url=database_url
        )
        return LoadedCorpusRun(self.folder, options).deploy()

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.num_worlds} worlds over {self.manifest.base.name})"


def open_run(folder: str | PathLike[str]) -> Run:
    """Open a run directory and verify the hash of each of its files.

    Raises:
        RunDirectoryError: it is missing, unfinished or damaged.
    """
    from reticent.worlds.run_directory import RunDirectory

    opened = RunDirectory.open(Path(folder), None)
    return Run(opened.folder, opened.manifest)


def build_worlds(
    corpus: "str | PathLike[str] | TextRows",
    *,
    out: str | PathLike[str],
    model: str | PathLike[str] = DEFAULT_MODEL,
    worlds: int = 128,
    text_key: str = "text",
    unit_key: str | None = None,
    limit: int | None = None,
    options: BuildOptions | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Adapt a base on a private corpus as m overlapping worlds, and once on all records.

    Args:
        corpus: a path (JSONL, CSV, Parquet, text, a folder), a list of texts or records, or a `datasets.Dataset`.
        out: the run directory to make.
        model: the base: a folder, a GGUF file, a hub id, or `smollm2-135m`.
        worlds: m; even, unless the run carries the corpus guarantee.
        text_key: key or column of the text.
        unit_key: key of a record's owner; an owner's records travel together. Each record on its own unless given.
        limit: read at most this many records.
        options: training and all other settings.
        resume: finish an interrupted build.
        progress: sink for progress; silent unless given.

    Raises:
        CorpusError, ModelError, InvalidValueError: the request cannot be met; nothing was written.
        OutputExistsError: `out` exists and `resume` is not set.
        RunDirectoryError: `resume` is set, but the folder was begun or built with another request.
        TrainingError, StorageError: the build cannot continue; `resume` finishes it.
    """
    from reticent._settings import readable_settings
    from reticent.text.template import template_for
    from reticent.worlds.build import BuildRequest, build_run

    chosen = options or BuildOptions()
    capacity = _capacity(chosen, worlds)
    lora, training = _training(chosen, capacity)
    with readable_settings("template"):
        place = Path(corpus) if isinstance(corpus, str | PathLike) else None
        template = template_for(place, text_key, chosen.template, chosen.answer_key, max_tokens=chosen.max_tokens)
    request = BuildRequest(
        corpus=_open_corpus(corpus, text_key, unit_key, limit, template),
        model=str(model),
        out=Path(out),
        num_worlds=worlds,
        lora=lora,
        training=training,
        template=template,
        text_key=text_key,
        unit_key=unit_key,
        limit=limit,
        membership_seed=chosen.membership_seed,
        device=chosen.device,
        assignment=parse_choice("assignment", Assignment, chosen.assignment),
        capacity=capacity,
        compile=chosen.compile,
    )
    built = build_run(request, progress or SilentProgress(), resume=resume)
    return Run(built.folder, built.manifest)


def _capacity(options: BuildOptions, worlds: int) -> "Capacity | None":
    """The declared worlds and places; None for a run without the corpus guarantee."""
    from reticent.worlds.places import Capacity

    if parse_choice("guarantee", Guarantee, options.guarantee) is not Guarantee.CORPUS:
        if options.places is not None or options.unit_records != 1:
            raise InvalidValueError("places and unit_records belong to the corpus guarantee; give guarantee corpus")
        return None
    if options.places is None:
        raise InvalidValueError(
            "the corpus guarantee needs places: how many units a world may hold, declared before the corpus is looked "
            "at; 1 is recommended where as many worlds fit as there may be units"
        )
    if parse_choice("assignment", Assignment, options.assignment) is not Assignment.OVERLAPPING:
        raise InvalidValueError("assignment belongs to the realised-world guarantee; places are drawn by themselves")
    return Capacity(worlds, options.places, options.unit_records)


def _training(options: BuildOptions, capacity: "Capacity | None") -> "tuple[LoraSettings, TrainingSettings]":
    """The settings of training, with the preset's values where none is given."""
    from reticent._settings import readable_settings
    from reticent.training.settings import LoraSettings, TrainingSettings, worlds_that_fit

    default = Preset.PLAIN if capacity is None else Preset.CORPUS
    preset = default if options.preset is None else parse_choice("preset", Preset, options.preset)
    values = PRESETS[preset]
    rank = values.rank if options.rank is None else options.rank
    # No world has more texts to a step than slots.
    batch_size = options.batch_size if capacity is None else min(options.batch_size, capacity.slots)
    epochs = values.epochs if options.epochs is None else options.epochs
    if preset is Preset.CORPUS and options.epochs is None and capacity is not None:
        epochs = max(1, round(values.epochs * batch_size / capacity.slots))
    with readable_settings():
        lora = LoraSettings(
            rank=rank,
            alpha=2.0 * rank if options.alpha is None else options.alpha,
            target_modules=options.target_modules,
            num_top_layers=(
                values.num_top_layers if options.adapt_layers is None else _top_layers(options.adapt_layers)
            ),
        )
        at_once = options.worlds_at_once
        training = TrainingSettings(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=values.learning_rate if options.learning_rate is None else options.learning_rate,
            max_tokens=options.max_tokens,
            seed=options.seed,
            dtype=options.dtype,
            worlds_at_once=1 if at_once is None else at_once,
        )
    if at_once is None:
        # Sizes that were refused above fit no number of worlds.
        fit = worlds_that_fit(training.batch_size, training.max_tokens)
        training = training.model_copy(update={"worlds_at_once": fit})
    return lora, training


def _top_layers(text: str) -> int | None:
    if text == "all":
        return None
    kind, _, count = text.partition(":")
    if kind != "top" or not count.isdecimal():
        raise InvalidValueError(f"adapt-layers must be `all` or `top:K`, got {text!r}")
    return int(count)


def _open_corpus(
    corpus: "str | PathLike[str] | TextRows",
    text_key: str,
    unit_key: str | None,
    limit: int | None,
    template: "TextTemplate",
) -> "Path | Corpus":
    """The path as it is, to be read by the build; anything else as a corpus."""
    from reticent.text.in_memory import corpus_of_rows

    if isinstance(corpus, str | PathLike):
        return Path(corpus)
    return corpus_of_rows(corpus, text_key=text_key, unit_key=unit_key, limit=limit, layout=template.layout)
