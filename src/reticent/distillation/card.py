"""The card of a distilled model: what its tokens were released under, for machines and for people.

    distilled.json   the record, and the hash of `adapt.json`; written last, so it is there or the model is not finished
    README.md        the model card

Published, so it holds nothing that tells of the corpus or of the realised world beyond the tokens themselves: no count
of dissenting positions, no charge that depends on votes, no hash of a run. Worlds can be built again to the same bytes,
and whoever guesses a corpus could compare such a hash.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from reticent._files import atomic_write_bytes, sha256_of_file
from reticent._records import check_schema
from reticent._settings import FiniteModel
from reticent.distillation.releases import ReleaseMode
from reticent.distillation.student import PublicLoss
from reticent.errors import InvalidValueError, RunDirectoryError
from reticent.guarantees import HIDES, Guarantee
from reticent.pac.account import Account
from reticent.pac.charging import ChargingRule
from reticent.pac.wording import HALF_MEANING, NOT_BOUNDED, WORLD_MEANING
from reticent.training.adapted_folder import ADAPT_NAME, AdaptedFolder

SCHEMA_VERSION = 1
DISTILLED_NAME = "distilled.json"
CARD_NAME = "README.md"


class ReleaseBound(FiniteModel):
    """The bound on all that a deployment released up to the last token of a student.

    The noise of a token is calibrated on the posterior that all earlier ones left, so a student's own tokens are
    bounded together with those before them, never apart.

    Attributes:
        guarantee: the guarantee that it belongs to.
        nats: at most this much information about the realised world.
        half_success, world_success: bounds on an attacker's success, from a prior of ½ and of 1/m.
        num_worlds: m.
        charging: the rule by which tokens were charged.
    """

    guarantee: Guarantee = Guarantee.REALISED_WORLD
    nats: float = Field(ge=0)
    half_success: float = Field(ge=0.5, le=1)
    world_success: float = Field(ge=0, le=1)
    num_worlds: int = Field(ge=2)
    charging: ChargingRule

    @classmethod
    def of(cls, account: Account, num_worlds: int, charging: ChargingRule) -> "ReleaseBound":
        """Bound an account as the public may see it.

        Where charges depend on the votes, that is the cap: the sum itself tells how often the worlds differed.

        Raises:
            InvalidValueError: charges depend on the votes and there is no cap.
        """
        shown = account
        if charging is not ChargingRule.FIXED:
            if account.at_cap is None:
                raise InvalidValueError(
                    f"a deployment that charges by the rule {charging} needs a cap before a model of it is published: "
                    "what it spent tells where the worlds differ; set --total-budget"
                )
            shown = account.at_cap
        return cls(
            nats=shown.spent_nats,
            half_success=shown.half_success,
            world_success=shown.world_success(num_worlds),
            num_worlds=num_worlds,
            charging=charging,
        )


class DistilledRecord(FiniteModel):
    """The record of a distilled model, as it is published.

    Attributes:
        created: when.
        bound: what its tokens tell, with all that the deployment released before.
        num_tokens, num_texts: released tokens, and public texts they were released on.
        settings: mode, decoding and student.
        public_loss: utility on public texts outside training.
        files: SHA-256 of the record of the weights.
    """

    schema_version: int = SCHEMA_VERSION
    created: str
    bound: ReleaseBound
    num_tokens: int = Field(ge=1)
    num_texts: int = Field(ge=1)
    settings: dict[str, Any]
    public_loss: PublicLoss | None = None
    files: dict[str, str]


@dataclass(frozen=True)
class DistilledFolder:
    """A finished, verified distilled model.

    Attributes:
        record: what is published with it.
        adapted: the weights.
    """

    record: DistilledRecord
    adapted: AdaptedFolder

    @classmethod
    def open(cls, folder: Path) -> "DistilledFolder":
        """Open a distilled model and verify the hash of each of its files.

        Raises:
            RunDirectoryError: it is missing, unfinished, damaged or of a newer schema.
        """
        path = folder / DISTILLED_NAME
        try:
            content: Any = json.loads(path.read_text("utf-8"))
            check_schema(path, content, SCHEMA_VERSION)
            record = DistilledRecord.model_validate(content)
        except OSError:
            raise RunDirectoryError(
                f"{folder} is no finished distilled model: it has no {DISTILLED_NAME}; make one with `reticent "
                "distill`, or finish it with --resume"
            ) from None
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise RunDirectoryError(f"{path} is damaged ({reason}); restore it from a backup or distil again") from None
        if record.files != {ADAPT_NAME: sha256_of_file(folder / ADAPT_NAME)}:
            raise RunDirectoryError(f"{folder / ADAPT_NAME} is not the file that was written; distil again")
        return cls(record, AdaptedFolder.open(folder))


def is_distilled(folder: Path) -> bool:
    """True if a folder says that it holds a distilled model."""
    return (folder / DISTILLED_NAME).is_file()


def write_card(folder: Path, record: DistilledRecord, base_name: str) -> DistilledFolder:
    """Write the model card and then the record, which makes the folder complete."""
    atomic_write_bytes(folder / CARD_NAME, card_text(record, base_name).encode())
    text = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    atomic_write_bytes(folder / DISTILLED_NAME, text.encode())
    return DistilledFolder.open(folder)


def card_text(record: DistilledRecord, base_name: str) -> str:
    """The model card, in Markdown."""
    bound, mode = record.bound, ReleaseMode(record.settings["mode"])
    used = "labelled, position by position," if mode is ReleaseMode.LABEL else "continued"
    learnt = "the public texts and on those tokens" if record.settings["public_text"] else "those tokens"
    utility = "Not measured: no public text was held out."
    if record.public_loss is not None:
        loss = record.public_loss
        utility = (
            f"On {loss.num_tokens:,} tokens of public text outside training: {loss.base:.4f} nats a token before, "
            f"{loss.student:.4f} after ({loss.base - loss.student:+.4f} gained)."
        )
    settings = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in record.settings.items())
    return f"""# A student of {base_name}

{record.num_texts:,} public texts were {used} by an ensemble of {bound.num_worlds} models adapted on a private corpus.
{record.num_tokens:,} tokens left it through a privacy mechanism and its ledger. This model was trained on
{learnt}, and on nothing else.

## What follows

It hides {HIDES[bound.guarantee]}. By post-processing this model, and whatever is made of it, tells no more than the
released tokens do:

| bound | at most | meaning |
|---|---|---|
| information about the realised world | {bound.nats:.6g} nats | all that the deployment released until then, together |
| which half | {_percent(bound.half_success)} | {HALF_MEANING} |
| which world | {_percent(bound.world_success)} | {WORLD_MEANING} |

**Not bounded:** {NOT_BOUNDED}. Tokens released later add to these figures. They do not cover the public texts.

## Utility

{utility}

## Settings

| setting | value |
|---|---|
{settings}

Using it needs no ledger: `reticent generate FOLDER`. A student by LoRA is a PEFT adapter in `weights/`, one by full
fine-tuning a `transformers` model there.
"""


def _percent(probability: float) -> str:
    """A bound as a percentage, rounded up so that it still bounds."""
    return f"{min(-(-probability * 10_000 // 1) / 100, 100.0):.2f} %"
