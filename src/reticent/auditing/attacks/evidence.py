"""The inputs of an attack, text by text, and its way to say that it has no score."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from reticent.protocols import TokenSignals

T = TypeVar("T")


class Need(StrEnum):
    """A kind of ingredient that an attack works from."""

    TARGET = "target"
    REFERENCE = "reference"
    TEXT = "text"
    NEIGHBOURS = "neighbours"
    GRADIENT = "gradient"
    SHADOWS = "shadows"
    SELF_PROMPTED = "self-prompted"
    PREFIX = "prefix"
    SAMPLES = "samples"
    GUESSES = "guesses"


@dataclass(frozen=True)
class Missing:
    """In place of a score: why there is none. The reason never quotes the text."""

    reason: str


Score = float | Missing
"""More = more likely a member; +inf is the top of the ranking. Never NaN."""


@dataclass(frozen=True, eq=False)
class ShadowEvidence:
    """One text under other models that were trained like the target, with and without the text.

    Attributes:
        in_means: mean ℓ under each shadow model that was trained on the text, nats per token, float64[models].
        out_means: the same under those that were not, float64[models].
        variances: pooled over texts, of `in_means` and of `out_means`, in nats²; None where each text has enough
            shadow models for its own.
        population_log_ratios: log(p_z / p̄_z) of the texts z that RMIA compares with, float64[texts].
        offline_a: RMIA's scaling, with which these ratios were made.
    """

    in_means: NDArray[np.float64]
    out_means: NDArray[np.float64]
    variances: tuple[float, float] | None
    population_log_ratios: NDArray[np.float64]
    offline_a: float


@dataclass(frozen=True, eq=False)
class SelfPromptedEvidence:
    """Paraphrases of one text under the target and under a reference trained on what the target wrote.

    Attributes:
        paraphrases_target: mean ℓ of each paraphrase under the target, nats per token, float64[paraphrases].
        reference: the text itself under the self-prompted reference.
        paraphrases_reference: mean ℓ of each paraphrase under that reference, float64[paraphrases].
    """

    paraphrases_target: NDArray[np.float64]
    reference: TokenSignals
    paraphrases_reference: NDArray[np.float64]


@dataclass(frozen=True)
class SampledEvidence:
    """The second half of a text, and what the target wrote in its place after the first."""

    rest: str
    samples: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class GuessEvidence:
    """Single guesses at P places of one text.

    Attributes:
        target: similarity of the target's guess to the text's own token, float64[P].
        surrogate: the same of a public model's guess.
        surrogate_logp: the public model's log-probability of the text's own token, in nats, float64[P].
    """

    target: NDArray[np.float64]
    surrogate: NDArray[np.float64]
    surrogate_logp: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TextEvidence:
    """Everything known about one text. None: not gathered in this audit; `Missing`: cannot be computed for this text.

    Attributes:
        target: the text under the audited model.
        reference: the text under the reference model.
        text: the text itself, for zlib alone.
        neighbour_means: mean ℓ of each neighbour under the target, nats per token, float64[neighbours].
        gradient_norm: norm of the target's mean-token loss gradient over its trainable parameters.
        shadows: the text under shadow models.
        self_prompted: the text and its paraphrases under the self-prompted reference.
        prefixed: the text under the target after a prefix of non-members; the text's own tokens only.
        samples: what the target writes after the text's first half.
        guesses: how near the target's guesses are to the text's tokens.
    """

    target: TokenSignals | Missing | None = None
    reference: TokenSignals | Missing | None = None
    text: str | None = None
    neighbour_means: NDArray[np.float64] | Missing | None = None
    gradient_norm: float | Missing | None = None
    shadows: ShadowEvidence | Missing | None = None
    self_prompted: SelfPromptedEvidence | Missing | None = None
    prefixed: TokenSignals | Missing | None = None
    samples: SampledEvidence | Missing | None = None
    guesses: GuessEvidence | Missing | None = None


class AbsentIngredientError(Exception):
    """Raised inside an attack's adapter for an ingredient that is not there; it never leaves the registry."""


def require(ingredient: T | Missing | None, need: Need) -> T:
    """The ingredient, if it is there.

    Raises:
        AbsentIngredientError: it is not; the message is the reason.
    """
    if ingredient is None:
        raise AbsentIngredientError(f"this audit has no {need} for the text")
    if isinstance(ingredient, Missing):
        raise AbsentIngredientError(ingredient.reason)
    return ingredient
