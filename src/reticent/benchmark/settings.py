"""The grid file: which models, data sets, techniques and attacks a benchmark crosses, and how each cell is made.

A grid is TOML. Every table refuses keys it does not know, and an error names the key and what to do:

    name = "my-grid"                       # of letters, digits, '-', '_' and '.'
    members = 200                          # texts adapted on
    nonmembers = 200                       # texts held out
    max_tokens = 128                       # texts are cut here
    [training]                             # for all techniques: epochs, batch_size, learning_rate
    [[models]]                             # name, family, and source (folder, hub id, .gguf) or tiny = true
    [[datasets]]                           # name, domain, path and/or hub, template, min_characters
    [[techniques]]                         # technique, and its own epochs, learning_rate, settings, demonstrations, …
    [attacks]                              # names, limits (attack = texts of each set), neighbours, shots, …
    [canaries]                             # kind, count, repetitions: planted among every cell's members

The grid is the product models x datasets x techniques x epochs x seeds; `epochs` of a technique may be a list.
"""

import string
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, ValidationError, field_validator, model_validator

from reticent._settings import FrozenModel
from reticent.auditing.attacks.registry import AttackName
from reticent.auditing.canaries.planting import CanaryKind
from reticent.errors import InvalidValueError
from reticent.training.settings import DTypeName, Technique, TechniqueSettings

Family = Literal["t5", "llama", "opt", "bloom", "gptj", "gpt2"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class ModelChoice(FrozenModel):
    """One base model.

    Attributes:
        name: what reports call it.
        family: its architecture; reports group by it.
        source: a folder, a hub id, a .gguf file, or the packaged model.
        tiny: make a small random model of the family instead, for trying a grid out.
    """

    name: Name
    family: Family
    source: str | None = None
    tiny: bool = False

    @model_validator(mode="after")
    def _check_one_origin(self) -> Self:
        if (self.source is None) != self.tiny:
            raise ValueError("give either source (a folder, hub id or .gguf file) or tiny = true")
        return self


class DataSetChoice(FrozenModel):
    """One data set.

    Attributes:
        name: what reports call it.
        domain: what it is about; reports group by it.
        path: a corpus file; a relative one is looked for under `--data`.
        hub: a data set's id on the hub, taken where `path` is not given or not there.
        files: which of the hub's files hold the records.
        made: texts that the program makes itself, by the name of their maker.
        template: how a record becomes a text; `{column}` is replaced by the value of a column.
        min_characters: shorter texts are left out.
        encoder_input: what an encoder-decoder's encoder reads.
    """

    name: Name
    domain: str
    path: str | None = None
    hub: str | None = None
    files: str = "*.parquet"
    made: str | None = None
    template: str = "{text}"
    min_characters: int = Field(default=1, ge=1)
    encoder_input: str = ""

    @field_validator("template")
    @classmethod
    def _check_columns_are_named(cls, template: str) -> str:
        if not columns_of(template):
            raise ValueError("name at least one column in braces, as {text}")
        return template

    @model_validator(mode="after")
    def _check_source_is_given(self) -> Self:
        if (self.path or self.hub) is None and self.made is None:
            raise ValueError("give path (a corpus file), hub (a data set's id) or made")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the template names, each once."""
        return columns_of(self.template)


def _check_attack_is_known(name: object) -> object:
    if not isinstance(name, str) or name not in set(AttackName):
        raise ValueError(f"no attack is called {name!r}; the names are {', '.join(AttackName)}")
    return name


Attack = Annotated[AttackName, BeforeValidator(_check_attack_is_known)]


class TechniqueChoice(FrozenModel):
    """One technique with its own settings; what is absent is taken from the grid's `[training]`.

    Attributes:
        technique: which one.
        epochs, batch_size, learning_rate: of its training; a list of epochs makes a cell of each,
            trained from the base.
        settings: the technique's sizes.
        demonstrations: for in-context learning, how many texts are the demonstrations, which are its members.
        dp_epsilon: the ε of differentially private training; none unless given. Its δ is a tenth of one over the
            members.
        attacks: run on this technique beside those of the grid.
    """

    technique: Technique
    epochs: PositiveInt | Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    batch_size: int | None = Field(default=None, ge=1)
    learning_rate: float | None = Field(default=None, gt=0, lt=1)
    settings: TechniqueSettings = TechniqueSettings()
    demonstrations: int | None = Field(default=None, ge=1)
    dp_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    attacks: tuple[Attack, ...] = ()

    @model_validator(mode="after")
    def _check_demonstrations(self) -> Self:
        if (self.technique is Technique.ICL) != (self.demonstrations is not None):
            raise ValueError("demonstrations belongs to icl, which needs it")
        return self

    @model_validator(mode="after")
    def _check_epochs_differ(self) -> Self:
        if isinstance(self.epochs, tuple) and len(set(self.epochs)) < len(self.epochs):
            raise ValueError("epochs has a number more than once; name each once")
        return self

    @property
    def label(self) -> str:
        """The technique, and its ε where it is trained with differential privacy."""
        return str(self.technique) + ("" if self.dp_epsilon is None else f", ε = {self.dp_epsilon:g}")

    @property
    def schedules(self) -> tuple["TechniqueChoice", ...]:
        """The choice with each of its numbers of epochs by itself."""
        if not isinstance(self.epochs, tuple):
            return (self,)
        return tuple(self.model_copy(update={"epochs": count}) for count in self.epochs)


class TrainingChoice(FrozenModel):
    """Training settings of techniques that say nothing else."""

    epochs: int = Field(default=2, ge=1)
    batch_size: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0, lt=1)
    gradient_checkpointing: bool = False


class AttackChoice(FrozenModel):
    """The attacks to run, and their sizes.

    Attributes:
        names: the attacks; each cell leaves out those that its model does not allow, and says so.
        limits: for some attacks, how many texts of each set they are run on.
        neighbours: how many neighbours a text has for the neighbourhood attack.
        shots: how many non-members make ReCaLL's prefix; these are not scored.
        masked_lm: a masked language model to make neighbours with; the base itself otherwise.
    """

    names: tuple[Attack, ...] = Field(min_length=1)
    limits: dict[Attack, Annotated[int, Field(ge=2)]] = Field(default_factory=dict)
    neighbours: int = Field(default=25, ge=1)
    shots: int = Field(default=10, ge=1)
    masked_lm: str | None = None


class CanaryChoice(FrozenModel):
    """Invented secrets that are planted among the members of every cell; see `reticent.auditing.canaries`.

    Attributes:
        kind: what they look like.
        count: pairs of a planted canary and a held-out twin.
        repetitions: how often they are planted, dealt to the pairs in turn.
        candidates: other secrets that each is ranked among.
    """

    kind: CanaryKind = CanaryKind.DIGITS
    count: int = Field(ge=2)
    repetitions: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1)
    candidates: int = Field(default=256, ge=1)

    @model_validator(mode="after")
    def _check_each_repetition_has_a_pair(self) -> Self:
        if len(self.repetitions) > self.count:
            raise ValueError(f"{len(self.repetitions)} numbers of repetitions need as many pairs; raise count")
        return self


@dataclass(frozen=True)
class GridCell:
    """One adapted model and its audit: a model, a data set, a technique trained for so long, and a seed.

    Attributes:
        technique: with one number of epochs, or none of its own.
        has_epochs_in_name: true where the grid trains the technique for several numbers of epochs.
    """

    model: ModelChoice
    dataset: DataSetChoice
    technique: TechniqueChoice
    seed: int
    has_epochs_in_name: bool = False

    @property
    def variant(self) -> str:
        """The technique as reports call it, with what sets it apart from the grid's other uses of it."""
        epochs = self.technique.epochs
        return self.technique.label + (f", {epochs} epoch{'s' * (epochs != 1)}" if self.has_epochs_in_name else "")

    @property
    def name(self) -> str:
        """Names the cell's folder; unique in its grid."""
        choice = self.technique
        parts = [self.dataset.name, self.model.name, str(choice.technique)]
        parts += [] if choice.dp_epsilon is None else [f"dp-{choice.dp_epsilon:g}"]
        parts += [f"epochs-{choice.epochs}"] if self.has_epochs_in_name else []
        return "--".join([*parts, f"seed-{self.seed}"])


class Grid(FrozenModel):
    """A whole grid, as read from its file."""

    name: Name
    description: str = ""
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    dtype: DTypeName = "float32"
    device: str = "cpu"
    max_tokens: int = Field(default=256, ge=2)
    members: int = Field(ge=2)
    nonmembers: int = Field(ge=2)
    keep_models: bool = True
    training: TrainingChoice = TrainingChoice()
    models: tuple[ModelChoice, ...] = Field(min_length=1)
    datasets: tuple[DataSetChoice, ...] = Field(min_length=1)
    techniques: tuple[TechniqueChoice, ...] = Field(min_length=1)
    attacks: AttackChoice
    canaries: CanaryChoice | None = None

    @model_validator(mode="after")
    def _check_names_are_unique(self) -> Self:
        for what, names in (
            ("models", [model.name for model in self.models]),
            ("datasets", [dataset.name for dataset in self.datasets]),
            ("techniques", [choice.label for choice in self.techniques]),
            ("seeds", [str(seed) for seed in self.seeds]),
        ):
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what} has {repeated[0]!r} more than once; name each once")
        return self

    @model_validator(mode="after")
    def _check_limited_attacks_run(self) -> Self:
        run = {*self.attacks.names, *(name for choice in self.techniques for name in choice.attacks)}
        if strange := sorted(set(self.attacks.limits) - run):
            raise ValueError(f"attacks.limits names {str(strange[0])!r}, which is not among the attacks that run")
        return self

    def cells(self) -> Iterator[GridCell]:
        """Every cell, data set by data set, so that signals of the reference are used as soon as they are known."""
        for dataset in self.datasets:
            for model in self.models:
                for choice in self.techniques:
                    for technique in choice.schedules:
                        for seed in self.seeds:
                            yield GridCell(model, dataset, technique, seed, isinstance(choice.epochs, tuple))

    def cell_settings(self, cell: GridCell) -> dict[str, Any]:
        """Everything that determines a cell's result, as plain JSON values."""
        return {
            "model": cell.model.model_dump(mode="json"),
            "dataset": cell.dataset.model_dump(mode="json"),
            "technique": cell.technique.model_dump(mode="json"),
            "seed": cell.seed,
            "training": self.training.model_dump(mode="json"),
            "attacks": self.attacks.model_dump(mode="json"),
            "canaries": None if self.canaries is None else self.canaries.model_dump(mode="json"),
            **self.model_dump(mode="json", include={"dtype", "device", "max_tokens", "members", "nonmembers"}),
        }


def columns_of(template: str) -> tuple[str, ...]:
    """The columns in braces in a template, each once, in order; none if the braces are not balanced."""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError:
        return ()
    return tuple(dict.fromkeys(fields)) if all(fields) else ()


def list_shipped_grids() -> tuple[str, ...]:
    """The names of the grids that come with the package."""
    folder = files("reticent.benchmark") / "grids"
    return tuple(sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml")))


def read_grid(name: str) -> Grid:
    """Read a grid file, or one that comes with the package by its name.

    Raises:
        InvalidValueError: there is no such grid, it is not TOML, or a key is unknown, missing or out of range; the
            message names the key.
    """
    if name in list_shipped_grids():
        text = (files("reticent.benchmark") / "grids" / f"{name}.toml").read_text("utf-8")
        return parse_grid(text, name)
    path = Path(name)
    try:
        return parse_grid(path.read_text("utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidValueError(
            f"grid {name!r} cannot be read ({reason}); give a TOML file, or one of {', '.join(list_shipped_grids())}"
        ) from None


def parse_grid(text: str, name: str) -> Grid:
    """Read a grid from TOML; `name` is what messages call it.

    Raises:
        InvalidValueError: see `read_grid`.
    """
    try:
        return Grid.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidValueError(f"grid {name!r} is not TOML: {error}") from None
    except ValidationError as error:
        problems = "; ".join(_describe_complaint(problem) for problem in error.errors()[:3])
        raise InvalidValueError(f"grid {name!r}: {problems}") from None


def _describe_complaint(problem: Any) -> str:
    """One complaint of pydantic's as key and remedy."""
    key = ".".join(str(part) for part in problem["loc"]) or "the grid"
    match problem["type"]:
        case "extra_forbidden":
            return f"{key} is not a key that grids have; remove or correct it"
        case "missing":
            return f"{key} is missing; add it"
        case "value_error":
            return f"{key}: {problem['ctx']['error']}"
        case _:
            return f"{key}: {problem['msg'][:1].lower()}{problem['msg'][1:]}, found {problem['input']!r}"
