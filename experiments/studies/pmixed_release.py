"""The tokens that PMixED releases along given texts, from a run of disjoint shards.

Distributions are those of public model and shards over the public model's k candidates, which are public: so all ways
to choose a token are compared on the same candidates, and PMixED's accounting is untouched.

Shape suffixes: M shards, N positions, K candidates, R draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from experiments.studies.pmixed import PMixedSettings, mixed_distribution, mixing_weights, projection_orders
from reticent._validate import integer_in_range, positive_finite
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import InvalidValueError


@dataclass(frozen=True)
class PMixedText:
    """PMixED's tokens along one text.

    Attributes:
        tokens_NR: for each setting its released tokens, one column a draw, int64[N, R].
        public_match_N: the public model's chance of the text's own next token, float64[N].
    """

    tokens_NR: tuple[NDArray[np.int64], ...]
    public_match_N: NDArray[np.float64]


def release_pmixed(
    forcing: TeacherForcing,
    tokens: Sequence[int],
    settings: Sequence[PMixedSettings],
    num_candidates: int,
    num_draws: int,
    generator: np.random.Generator,
    temperature: float = 1.0,
) -> PMixedText:
    """Release every token of a text under each setting, with the text itself as context.

    Args:
        forcing: public model and shards.
        tokens: the text.
        settings: for as many shards as there are.
        num_candidates: k.
        num_draws: R, independent draws of shards and token.
        generator: of the draws; for experiments only.
        temperature: divides all logits.

    Raises:
        InvalidValueError: settings for another number of shards, or a value out of range.
    """
    integer_in_range("num_draws", num_draws, 1)
    positive_finite("temperature", temperature)
    if any(each.num_shards != forcing.num_worlds for each in settings):
        raise InvalidValueError(f"the settings must be for the run's {forcing.num_worlds} shards")
    released: list[list[NDArray[np.int64]]] = [[] for _ in settings]
    public_chances = []
    for block in forcing.blocks(tokens, num_candidates, len(tokens)):
        public_NK = softmax(block.public_NK.astype(np.float64) / temperature, axis=1)
        shards_NMK = softmax(block.worlds_MNK.astype(np.float64).swapaxes(0, 1) / temperature, axis=2)
        for row, (candidates_K, public_K, shards_MK) in enumerate(
            zip(block.candidates_NK, public_NK, shards_NMK, strict=True)
        ):
            is_next_K = candidates_K == tokens[block.start + row + 1]
            public_chances.append(float(public_K[is_next_K].sum()))
            for each, tokens_of in zip(settings, released, strict=True):
                distributions_RK = _draw_distributions(shards_MK, public_K, each, num_draws, generator)
                tokens_of.append(candidates_K[_draws(distributions_RK, generator)])
    return PMixedText(tuple(np.stack(rows) for rows in released), np.array(public_chances))


def _draw_distributions(
    shards_MK: NDArray[np.float64],
    public_K: NDArray[np.float64],
    settings: PMixedSettings,
    num_draws: int,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """The distribution of each draw's token after drawing which shards take part, float64[R, K]."""
    orders = projection_orders(settings.max_order)
    weights_M = mixing_weights(shards_MK, public_K, settings.beta, orders)
    distributions = []
    for _ in range(num_draws):
        taking_part = np.flatnonzero(generator.random(settings.num_shards) < settings.sampling_rate)
        distributions.append(mixed_distribution(shards_MK[taking_part], public_K, weights_M[taking_part]))
    return np.stack(distributions)


def _draws(distributions_RK: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.int64]:
    """One index from each distribution, int64[R]."""
    cumulated_RK = distributions_RK.cumsum(axis=1)
    position_R1 = generator.random((len(distributions_RK), 1)) * cumulated_RK[:, -1:]
    drawn: NDArray[np.int64] = (cumulated_RK <= position_R1).sum(axis=1)
    return drawn
