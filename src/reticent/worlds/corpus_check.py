"""A dry run over a corpus: what a build would read, leave out and train on, before hours of training."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from reticent import _validate
from reticent._settings import FrozenModel
from reticent.text.corpus import Corpus, group_units
from reticent.text.template import TextTemplate, encode, texts_as_trained

_MOST_BINS = 12


class LengthBin(FrozenModel):
    """Records of `low` to `high` tokens, both included."""

    low: int
    high: int
    count: int


class WorldsPlan(FrozenModel):
    """A number of worlds, the records that one holds on average, and the tokens of an epoch over all worlds."""

    worlds: int
    records_per_world: float
    training_tokens: int


class CorpusCheck(FrozenModel):
    """The facts of a corpus, by count alone.

    Attributes:
        records: those that are read. units: those of privacy. largest_unit: records of the largest one.
        skipped_blank: records left out. ignored_messages: messages of tools left out.
        repeats: records whose text an earlier one has. merged_units: near-duplicates taken for one unit;
            merged_once_cut: those of them that are so only once cut. respelled_units: spellings taken for another's.
        tokens: of all records before they are cut: least, median, 95 % and most.
        truncated: records that are cut. unscored: records without a token to predict, which a build refuses.
        scored_tokens: tokens to predict, once for all records.
        lengths: records by their tokens before they are cut.
        plans: what some numbers of worlds would mean.
    """

    records: int
    units: int
    largest_unit: int
    skipped_blank: int
    ignored_messages: int
    repeats: int
    merged_units: int
    merged_once_cut: int
    respelled_units: int
    tokens: tuple[int, int, int, int]
    max_tokens: int
    truncated: int
    unscored: int
    scored_tokens: int
    lengths: tuple[LengthBin, ...]
    plans: tuple[WorldsPlan, ...]


def check_corpus(corpus: Corpus, tokenizer: Any, template: TextTemplate, worlds: Sequence[int]) -> CorpusCheck:
    """Look at a corpus as a build would.

    Args:
        corpus: the corpus.
        tokenizer: the base's.
        template: what surrounds each record, and where it is cut.
        worlds: numbers of worlds to plan for, each even.

    Raises:
        CorpusError: fewer than two units are left.
        InvalidValueError: a number of worlds is not even, or the template does not fit.
    """
    for number in worlds:
        _validate.num_worlds(number)
    records = [record.text for record in corpus.records]
    encoded = encode(tokenizer, template, records)
    whole = encode(tokenizer, template.model_copy(update={"max_tokens": 2**31 - 1}), records)
    units = group_units(corpus.records, texts_as_trained=texts_as_trained(tokenizer, template, records, encoded))
    lengths = np.array([len(text.token_ids) for text in whole], dtype=np.int64)
    scored = int(sum(text.num_scored for text in encoded))
    ranks = np.quantile(lengths, [0.0, 0.5, 0.95, 1.0], method="inverted_cdf").astype(int).tolist()
    return CorpusCheck(
        records=len(records),
        units=units.num_units,
        largest_unit=int(np.bincount(units.unit_of_record).max()),
        skipped_blank=corpus.skipped_blank,
        ignored_messages=corpus.ignored_messages,
        repeats=len(records) - len(set(records)),
        merged_units=units.merged,
        merged_once_cut=units.merged_once_cut,
        respelled_units=corpus.respelled_units,
        tokens=(ranks[0], ranks[1], ranks[2], ranks[3]),
        max_tokens=template.max_tokens,
        truncated=sum(text.truncated for text in encoded),
        unscored=sum(not text.num_scored for text in encoded),
        scored_tokens=scored,
        lengths=_histogram(lengths),
        # Each record is in half of the worlds, and once in the adapter on all records.
        plans=tuple(
            WorldsPlan(worlds=m, records_per_world=len(records) / 2, training_tokens=scored * (m // 2 + 1))
            for m in worlds
        ),
    )


def _histogram(lengths: Any) -> tuple[LengthBin, ...]:
    """Records by length, in bins of one width of a round number of tokens."""
    span = int(lengths.max()) - int(lengths.min()) + 1
    width = next(size * 10**power for power in range(12) for size in (1, 2, 5) if size * 10**power * _MOST_BINS > span)
    first = int(lengths.min()) // width
    counts = np.bincount(lengths // width - first)
    return tuple(
        LengthBin(low=(first + n) * width, high=(first + n + 1) * width - 1, count=int(count))
        for n, count in enumerate(counts)
    )
