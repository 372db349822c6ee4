"""The members of a grid's cell with canaries planted among them, and the texts that are held out beside them.

    CELL/planted/     planted.jsonl, canaries.jsonl, planting.json, as `reticent canaries plant` makes them

Members and non-members are drawn from the data set's texts by the cell's seed; so are the canaries. Two cells of one
data set, seed and canaries have equal texts, whatever their techniques.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reticent.auditing.canaries.planting import (
    CANARIES_NAME,
    PLANTED_NAME,
    PLANTING_NAME,
    Canary,
    draw_canaries,
    plant,
    read_canaries,
)
from reticent.benchmark.settings import CanaryChoice
from reticent.errors import CorpusError, StorageError
from reticent.text.corpus import read_corpus

_SPLIT_STREAM = 17


@dataclass(frozen=True)
class PlantedTexts:
    """Texts of a cell.

    Attributes:
        corpus: the members with the canaries' copies among them: all of it is trained on.
        members, nonmembers: texts of the data set; no canary is among them.
        canaries: planted ones and their held-out twins.
    """

    corpus: Path
    members: tuple[str, ...]
    nonmembers: tuple[str, ...]
    canaries: tuple[Canary, ...]


def plant_cell(corpus: Path, num_nonmembers: int, choice: CanaryChoice, seed: int, folder: Path) -> PlantedTexts:
    """Draw a cell's texts and plant its canaries, or find them planted.

    Args:
        corpus: the data set's texts, no two near-duplicates.
        num_nonmembers: how many are held out.
        choice: the canaries.
        seed: the cell's.
        folder: the cell's.

    Raises:
        CorpusError: too few texts.
        AuditError, StorageError: the canaries cannot be planted.
    """
    records = read_corpus(corpus).records
    if not num_nonmembers < len(records):
        raise CorpusError(f"{num_nonmembers} of {len(records)} texts cannot be held out; lower nonmembers")
    order = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _SPLIT_STREAM]))).permutation(
        len(records)
    )
    members = [records[at] for at in np.sort(order[num_nonmembers:])]
    nonmembers = [records[at] for at in np.sort(order[:num_nonmembers])]
    planted = folder / "planted"
    if not (planted / PLANTING_NAME).is_file():
        try:
            if planted.exists():
                shutil.rmtree(planted)
        except OSError as error:
            raise StorageError(f"cannot clear {planted}: {error.strerror or error}") from None
        plant(members, draw_canaries(choice.kind, choice.count, choice.repetitions, seed), planted, seed=seed)
    return PlantedTexts(
        corpus=planted / PLANTED_NAME,
        members=tuple(record.text for record in members),
        nonmembers=tuple(record.text for record in nonmembers),
        canaries=read_canaries(planted / CANARIES_NAME),
    )
