"""Settings that determine one adapted model: how records are split, how it is trained, and how privately.

They are recorded with the model, and an interrupted training resumes with the same ones alone.
"""

from pydantic import Field, model_validator

from reticent._settings import FrozenModel
from reticent.training.settings import LARGEST_SEED, DTypeName


class SplitSettings(FrozenModel):
    """The split of a corpus into members, texts held out for the audit, and validation texts.

    Near-duplicates, and records of one unit, are always on one side, so a count or a share is reached as nearly as
    that allows, never exceeded.

    Attributes:
        heldout_count: how many records are held out as non-members.
        heldout_fraction: the same as a share of all records; one of the two at most.
        val_fraction: the share of all records that the validation loss is measured on. They are not trained on, so
            they are not members; they are not held-out records either.
        demonstrations: for in-context learning, how many records are the demonstrations: the members. Records that
            are neither held out nor demonstrations are then not used.
        seed: public; draws the split.
    """

    heldout_count: int | None = Field(default=None, ge=0)
    heldout_fraction: float = Field(default=0.0, ge=0, lt=1)
    val_fraction: float = Field(default=0.0, ge=0, lt=1)
    demonstrations: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_way_to_hold_out(self) -> "SplitSettings":
        if self.heldout_count is not None and self.heldout_fraction:
            raise ValueError("give a number of records to hold out or a share of them, not both")
        return self


class SingleTrainingSettings(FrozenModel):
    """Training of one model: AdamW without weight decay, the gradient clipped to a norm of 1.

    Attributes:
        epochs: passes over the members, fixed in advance: stopping early would depend on the data.
        batch_size: records a step takes, about; units, where they are what differential privacy protects.
        learning_rate: the peak; reached over the first twentieth of the steps, then falling linearly to zero.
        seed: public; orders the records, initialises what the technique adds, and draws dropout.
        dtype: of the model and of all products; what is trained keeps float32 copies that the optimiser updates.
        gradient_checkpointing: compute activations a second time instead of keeping them.
    """

    epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0, lt=1)
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    dtype: DTypeName = "float32"
    gradient_checkpointing: bool = False


class PrivacySettings(FrozenModel):
    """The differential privacy asked of the trained model; see `reticent.training.dpsgd`.

    Attributes:
        epsilon: the ε not to exceed.
        delta: its δ.
        max_gradient_norm: each record's, or each unit's, gradient is clipped to this norm.
        records_at_once: how many records pass through the model together; it changes nothing but rounding.
        per_unit: protect whole units, such as all records of one patient, in place of records.
    """

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1)
    max_gradient_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    records_at_once: int = Field(default=8, ge=1)
    per_unit: bool = False
