"""The point at which worlds are trained: chosen by the sweep, read by every other script."""

from pathlib import Path

from pydantic import Field, ValidationError

from experiments.pac.results import write_file
from experiments.pac.settings import Size
from reticent._settings import FiniteModel
from reticent.errors import RunDirectoryError
from reticent.training.settings import LoraSettings, TrainingSettings

FILE_NAME = "operating-point.json"


class OperatingPoint(FiniteModel):
    """The settings that the sweep varies and a user of `reticent worlds build` chooses.

    Attributes:
        learning_rate, epochs: of training.
        rank: of LoRA; alpha is twice the rank.
        num_top_layers: how many of the last blocks are adapted; None for all.
        chosen_on: `SIZE DOMAIN` of the sweep; None where no sweep chose it.
        rule: how it was chosen.
    """

    learning_rate: float = Field(gt=0, lt=1)
    epochs: int = Field(ge=1)
    rank: int = Field(ge=1)
    num_top_layers: int | None = Field(ge=1)
    chosen_on: str | None = None
    rule: str | None = None

    @classmethod
    def of(cls, lora: LoraSettings, training: TrainingSettings) -> "OperatingPoint":
        """The point of given settings."""
        return cls(
            learning_rate=training.learning_rate,
            epochs=training.epochs,
            rank=lora.rank,
            num_top_layers=lora.num_top_layers,
        )

    def lora(self, base: LoraSettings) -> LoraSettings:
        """Adapter settings at this point."""
        update = {"rank": self.rank, "alpha": 2.0 * self.rank, "num_top_layers": self.num_top_layers}
        return base.model_copy(update=update)

    def training(self, base: TrainingSettings) -> TrainingSettings:
        """Training settings at this point."""
        return base.model_copy(update={"learning_rate": self.learning_rate, "epochs": self.epochs})


def write_operating_point(folder: Path, point: OperatingPoint) -> Path:
    """Write what a sweep chose."""
    path = folder / FILE_NAME
    write_file(path, (point.model_dump_json(indent=2) + "\n").encode())
    return path


def read_operating_point(folder: Path, size: Size) -> OperatingPoint | None:
    """Read the choice of a sweep of this size, in whichever domain; None where there is none.

    A point chosen in one domain serves the other too, which then had no part in the choice.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        point = OperatingPoint.model_validate_json(path.read_bytes())
    except ValidationError:
        raise RunDirectoryError(f"{path} is no operating point; delete it or run experiments.pac.sweep") from None
    return point if point.chosen_on is not None and point.chosen_on.split()[0] == size.value else None
