"""The split of a corpus into members, held-out and validation texts: a pure function of corpus and settings."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.errors import CorpusError
from reticent.text.corpus import TextRecord, Units, group_units
from reticent.training.single_settings import SplitSettings

_SPLIT_STREAM = 3


@dataclass(frozen=True)
class Split:
    """TextRecord numbers, each list in the corpus's order, no record in two of them.

    Attributes:
        members: what the model is adapted on, int64.
        heldout: what the audit uses as non-members, int64.
        validation: what the validation loss is measured on, int64.
        units: the partition of the records, no unit on two sides.
    """

    members: NDArray[np.int64]
    heldout: NDArray[np.int64]
    validation: NDArray[np.int64]
    units: Units


def split_records(
    records: Sequence[TextRecord], settings: SplitSettings, texts_as_trained: Sequence[str] | None = None
) -> Split:
    """Draw units in a public random order: first those held out, then validation, then members.

    Args:
        records: the records of a corpus.
        settings: the sizes of the parts.
        texts_as_trained: what is trained on of each record, for `group_units`.

    Raises:
        CorpusError: fewer than two units are left after merging near-duplicates, or there are not enough records for
            what is asked.
    """
    units = group_units(records, texts_as_trained=texts_as_trained)
    positions = np.argsort(units.unit_of_record, kind="stable")
    sizes = np.bincount(units.unit_of_record)
    members_of_unit = np.split(positions, np.cumsum(sizes)[:-1])
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([settings.seed, _SPLIT_STREAM])))
    remaining = [members_of_unit[unit] for unit in generator.permutation(units.num_units)]

    count = settings.heldout_count
    heldout, remaining = _take(remaining, round(settings.heldout_fraction * len(records)) if count is None else count)
    validation, remaining = _take(remaining, round(settings.val_fraction * len(records)))
    if settings.demonstrations is None:
        members = _join_groups(remaining)
    else:
        members, _ = _take(remaining, settings.demonstrations)
    wanted = {"hold out": (count, heldout), "be demonstrations": (settings.demonstrations, members)}
    for what, (number, found) in wanted.items():
        if number is not None and len(found) < number:
            raise CorpusError(
                f"{number} records cannot {what}: {len(found)} of {len(records)} are left for it, as near-duplicates "
                "and records of one unit stay together; add records or ask for fewer"
            )
    if not len(members):
        raise CorpusError(f"no record of {len(records)} is left to adapt on; hold out fewer or add records")
    return Split(members, heldout, validation, units)


def _take(groups: list[NDArray[np.int64]], count: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Take groups in order, each that still fits, up to `count` records; returns the records, and the other groups."""
    taken: list[NDArray[np.int64]] = []
    left: list[NDArray[np.int64]] = []
    size = 0
    for group in groups:
        fits = size + len(group) <= count
        (taken if fits else left).append(group)
        size += len(group) if fits else 0
    return _join_groups(taken), left


def _join_groups(groups: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *groups]))
