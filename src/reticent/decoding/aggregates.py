"""Aggregates: what all worlds of a corpus deployment say of the next token, added up, for a whole step at once.

What is guaranteed of every engine that gives them. For one history the integer votes of a world depend on its own
adapter and on public things alone, whatever the other worlds hold: empty worlds are computed like any other, a world
that is not finite votes zero, and nothing skips, sorts or rounds by what a world holds. A context has an error in place
of its aggregate only for what is public: the public model gave no distribution, or the engine failed as a whole.

| case | what `aggregate_step` gives |
|---|---|
| one context has no aggregate | its error, and the aggregates of all others |
| the engine fails as a whole | that error for every context |
| something that is no aggregate of these settings | `InvalidValueError` for that context |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reticent._validate import positive_finite
from reticent.decoding.engines import C, VoteEngine, answers_of_each
from reticent.decoding.votes import Decoder
from reticent.dp.release import Aggregate, CorpusSettings, require_settings
from reticent.errors import InvalidValueError


@dataclass(frozen=True)
class CorpusDecoding:
    """Settings of one answer of a corpus deployment. What the public model drafts or continues alone follows them too.

    Attributes:
        constants: of the deployment.
        temperature: divides the public log-probabilities of this answer alone; votes, w and charge stay.

    Raises:
        InvalidValueError: the temperature is not positive and finite.
    """

    constants: CorpusSettings
    temperature: float

    def __post_init__(self) -> None:
        positive_finite("temperature", self.temperature)

    @classmethod
    def of(cls, constants: CorpusSettings) -> "CorpusDecoding":
        """Return the settings at the deployment's own temperature."""
        return cls(constants, constants.temperature)

    @property
    def decoder(self) -> Decoder:
        """The rule by which the public model drafts: samples with public coins, which no release ever uses."""
        return Decoder.GUMBEL

    @property
    def num_candidates(self) -> int:
        """Size k of the public model's candidate set."""
        return self.constants.num_candidates

    @property
    def reserve_units(self) -> int:
        """The charge for every token, in units of 2^-64 of ρ."""
        return self.constants.charge_units


class AggregateEngine(VoteEngine[C], Protocol[C]):
    """An engine for the corpus guarantee."""

    def aggregates(self, contexts: Sequence[C], settings: CorpusSettings) -> Sequence[Aggregate | Exception]:
        """Add up all worlds' integer votes for the next token of each context, or say why there are none."""
        ...


def aggregate_step(
    engine: AggregateEngine[C], contexts: Sequence[C], settings: CorpusSettings
) -> list[Aggregate | Exception]:
    """Aggregate the votes of a step, each checked; never raises."""
    found = answers_of_each(lambda: engine.aggregates(contexts, settings), len(contexts))
    return [_check_aggregate(each, settings, engine.vocab_size) for each in found]


def _check_aggregate(found: Aggregate | Exception, settings: CorpusSettings, vocab_size: int) -> Aggregate | Exception:
    if isinstance(found, Exception):
        return found
    try:
        require_settings(found, settings)
    except InvalidValueError as error:
        return error
    candidates_K = found.candidates_K
    if not 0 <= candidates_K.min() <= candidates_K.max() < vocab_size:
        return InvalidValueError(f"the engine's candidates are not token ids below {vocab_size}")
    return found
