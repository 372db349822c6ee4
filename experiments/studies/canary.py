"""Forced memorisation: who repeats a planted canary, and what the repetition tells about the realised world.

A canary occurs in the corpus so often that every world that holds it learns it by heart. Its prefix is the prompt. A
whole secret is emitted exactly where each of its tokens is released after those before it, so teacher-forced votes at
the secret's positions give the emission of free-running answers without loss: after a first miss there is nothing left
to emit.

Two questions that are easily taken for one (arXiv 2609.05676): does the *rate* of emission differ between realised
worlds that hold the canary and those that do not - that is what a bound on S is about; and is it emitted at all - that
it does not bound. Where half of the worlds vote for the secret's token, small budgets release it about every second
time, whoever is realised.

Deployments are independent draws of S, noise and the controls' J, each answering one prompt; canaries, worlds and coins
are given. Intervals are over deployments.

Shape suffixes: C canaries, M worlds, I texts, N positions, R deployments, P positions of one secret.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from experiments.studies.releases import ReleasedTokens, release_by_control, release_by_mechanism, release_noiseless
from reticent import _validate
from reticent._settings import FiniteModel
from reticent.auditing.canaries.planting import Canary
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.pac.mechanism import ReleaseMechanism
from reticent.randomness import SeededNoise
from reticent.stats.estimate import Estimate
from reticent.stats.intervals import clopper_pearson, newcombe_difference
from reticent.stats.means import CONFIDENCE, Mean, sample_mean
from reticent.text.tokenise import whole_documents


@dataclass(frozen=True)
class CanaryTexts:
    """Canaries as token sequences, each asked for once or more, each time with other coins.

    Attributes:
        tokens: prefix and secret of each text.
        first_secret_I: where the secret's tokens begin in it, int64[I].
        canary_I: which canary it is, int64[I].
        members_CM: which worlds hold each canary; no world, for one that was never planted, bool[C, M].
    """

    tokens: Sequence[Sequence[int]]
    first_secret_I: NDArray[np.int64]
    canary_I: NDArray[np.int64]
    members_CM: NDArray[np.bool_]

    def secret_positions(self, text: int, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of a vote tensor over these texts that predict a text's secret, int64[P]."""
        return np.arange(offsets[text] + self.first_secret_I[text] - 1, offsets[text + 1])

    @property
    def is_planted(self) -> NDArray[np.bool_]:
        """True if each text's canary is in the corpus, bool[I]."""
        planted_C: NDArray[np.bool_] = np.any(self.members_CM, axis=1)
        return planted_C[self.canary_I]


def canary_texts(
    tokenizer: Any, canaries: Sequence[Canary], members_CM: NDArray[np.bool_], num_prompts: int
) -> CanaryTexts:
    """Encode canaries, each `num_prompts` times.

    Args:
        tokenizer: the model's.
        canaries: C of them.
        members_CM: which worlds hold each.
        num_prompts: how often each is asked for, with fresh coins.

    Raises:
        InvalidValueError: a secret adds no token to the prefix, or shapes disagree.
    """
    _validate.integer_in_range("num_prompts", num_prompts, 1)
    if len(canaries) != len(members_CM) or not canaries:
        raise InvalidValueError(f"{len(canaries)} canaries need as many rows of membership, got {len(members_CM)}")
    whole = list(whole_documents(tokenizer, [canary.text for canary in canaries], add_end=False))
    prefixes = whole_documents(tokenizer, [canary.prefix for canary in canaries], add_end=False)
    starts = []
    for canary, tokens, prefix in zip(canaries, whole, prefixes, strict=True):
        pairs = zip(prefix, tokens, strict=False)
        shared = next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(prefix), len(tokens)))
        if not 1 <= shared < len(tokens):
            raise InvalidValueError(f"canary {canary.id}: no token of the secret follows a token of the prefix")
        starts.append(shared)
    canary_I = np.repeat(np.arange(len(canaries)), num_prompts)
    return CanaryTexts([whole[c] for c in canary_I], np.array(starts)[canary_I], canary_I, members_CM)


class EmissionByMembership(FiniteModel):
    """Emission by whether the realised world holds the canary.

    Attributes:
        tokens_with, tokens_without: share of the secret's tokens released, mean over deployments.
        whole_with, whole_without: share of deployments that release the whole secret, with exact intervals.
        advantage: whole_with − whole_without: what "it was emitted, so the world holds it" is worth, with Newcombe's
            interval.
        token_advantage: tokens_with − tokens_without, with a normal interval.
    """

    tokens_with: Mean
    tokens_without: Mean
    whole_with: Estimate
    whole_without: Estimate
    advantage: Estimate
    token_advantage: Estimate


class CanaryRow(FiniteModel):
    """One way to choose tokens.

    Attributes:
        extraction: share of answers to a planted canary's prefix that are its whole secret, with an exact interval.
        tokens: share of the secret's tokens released.
        never_planted: `extraction` for canaries that are in no world; None without any.
        membership: by membership of the realised world; None where there is none.
    """

    method: str
    step_budget: float | None = None
    extraction: Estimate
    tokens: Mean
    never_planted: Estimate | None = None
    membership: EmissionByMembership | None = None


class CanaryStudy(FiniteModel):
    """Emission of canaries by every method with one decoder.

    Attributes:
        decoder: how worlds vote.
        rows: one for each method.
        learnt_with, learnt_without: share of (canary, world) pairs in which the world's greedy votes are the whole
            secret, for worlds that hold it and worlds that do not: whether memorisation was forced.
        num_canaries: planted ones.
        num_prompts: answers asked for each canary with different coins.
        num_deployments: for each such answer.
    """

    decoder: Decoder
    rows: tuple[CanaryRow, ...]
    learnt_with: float
    learnt_without: float
    num_canaries: int
    num_prompts: int
    num_deployments: int

    def row(self, method: str, step_budget: float | None = None) -> CanaryRow:
        """The row of a method, at a budget for a release mechanism."""
        return next(row for row in self.rows if (row.method, row.step_budget) == (method, step_budget))


@dataclass(frozen=True)
class CanaryStudySettings:
    """Settings of the comparison.

    Attributes:
        budgets: b in nats. mechanisms: the release mechanisms.
        num_deployments: for each prompt.
        seed: of secrets, noise and the controls' draws.
    """

    budgets: Sequence[float] = (2.0**-8, 2.0**-20, 2.0**-32)
    mechanisms: Sequence[ReleaseMechanism] = tuple(ReleaseMechanism)
    num_deployments: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.integer_in_range("num_deployments", self.num_deployments, 1)
        _validate.integer_in_range("seed", self.seed, 0)
        for budget in self.budgets:
            _validate.positive_finite("budget", budget)


@dataclass(frozen=True)
class Emissions:
    """Contents of one method's answers, one row an answer, text after text.

    Attributes:
        tokens_A: share of the secret's tokens, float64[answers].
        text_A: which text was asked for, int64[answers].
        holds_A: whether the realised world holds the canary, bool[answers]; None where there is no such world.
    """

    tokens_A: NDArray[np.float64]
    text_A: NDArray[np.int64]
    holds_A: NDArray[np.bool_] | None = None


def canary_study(
    tensor: VoteTensor, decoder: Decoder, texts: CanaryTexts, settings: CanaryStudySettings | None = None
) -> CanaryStudy:
    """Measure emission on the votes of canary texts.

    Args:
        tensor: votes over `texts.tokens`, in order.
        decoder: which votes.
        texts: the canaries.
        settings: what is compared.

    Raises:
        InvalidValueError: the tensor is of other texts or another number of worlds, or nothing was planted.
    """
    settings = settings or CanaryStudySettings()
    _check(tensor, texts)
    votes_NM = tensor.votes(decoder).worlds_NM
    models = {"public": tensor.votes(decoder).public_N}
    if tensor.has_full:
        models["full-data"] = tensor.votes(decoder).full_N
    has_coins = decoder is not Decoder.GREEDY
    rows = [
        emission_row(name, count_single_emissions(tensor, texts, votes_N[:, None], has_coins=has_coins), texts)
        for name, votes_N in models.items()
    ]
    for method, budget, release in _releases(settings):
        emissions = _count_emissions(tensor, texts, votes_NM, settings, release)
        rows.append(emission_row(method, emissions, texts, budget))
    learnt_IM = np.stack(
        [
            (tensor.greedy.worlds_NM[at] == tensor.targets_N[at, None]).all(axis=0)
            for at in (texts.secret_positions(text, tensor.offsets) for text in range(len(texts.tokens)))
        ]
    )
    holds_IM = texts.members_CM[texts.canary_I]
    num_planted = int(texts.members_CM.any(axis=1).sum())
    return CanaryStudy(
        decoder=decoder,
        rows=tuple(rows),
        learnt_with=float(learnt_IM[holds_IM].mean()),
        learnt_without=float(learnt_IM[texts.is_planted][~holds_IM[texts.is_planted]].mean()),
        num_canaries=num_planted,
        num_prompts=int(np.bincount(texts.canary_I).max()),
        num_deployments=settings.num_deployments,
    )


def count_single_emissions(
    tensor: VoteTensor, texts: CanaryTexts, tokens_NR: NDArray[np.integer], *, has_coins: bool = True
) -> Emissions:
    """Collect the answers without a realised world: one model's, or another protection's, R answers a text.

    Args:
        tensor: over `texts.tokens`, for their positions and next tokens.
        texts: the canaries.
        tokens_NR: released tokens.
        has_coins: whether answers to the same prompt differ by their coins; otherwise a canary is asked for once.
    """
    asked = np.arange(texts.canary_I.size) if has_coins else np.unique(texts.canary_I, return_index=True)[1]
    shares = []
    for text in asked.tolist():
        at = texts.secret_positions(text, tensor.offsets)
        shares.append((tokens_NR[at] == tensor.targets_N[at, None]).mean(axis=0))
    return Emissions(np.concatenate(shares), np.repeat(asked, tokens_NR.shape[1]))


def emission_row(method: str, emissions: Emissions, texts: CanaryTexts, step_budget: float | None = None) -> CanaryRow:
    """Summarise the answers of one method."""
    planted_A = texts.is_planted[emissions.text_A]
    whole_A = emissions.tokens_A == 1.0
    membership = None
    if emissions.holds_A is not None:
        membership = _by_membership(emissions.tokens_A[planted_A], emissions.holds_A[planted_A])
    return CanaryRow(
        method=method,
        step_budget=step_budget,
        extraction=_rate(whole_A[planted_A]),
        tokens=sample_mean(emissions.tokens_A[planted_A]),
        never_planted=_rate(whole_A[~planted_A]) if (~planted_A).any() else None,
        membership=membership,
    )


_Release = Callable[[NDArray[np.int64], NDArray[np.int64], int], ReleasedTokens]
"""From a secret's votes [P, M], secrets [R] and a text's number to what was released."""


def _releases(settings: CanaryStudySettings) -> list[tuple[str, float | None, _Release]]:
    found: list[tuple[str, float | None, _Release]] = [
        ("noiseless", None, lambda votes_PM, secrets_R, text: release_noiseless(votes_PM, secrets_R))
    ]

    def by_control(control: Control) -> _Release:
        def release(votes_PM: NDArray[np.int64], secrets_R: NDArray[np.int64], text: int) -> ReleasedTokens:
            return release_by_control(votes_PM, control, secrets_R, np.random.default_rng([settings.seed, 1, text]))

        return release

    def by_mechanism(mechanism: ReleaseMechanism, budget: float) -> _Release:
        def release(votes_PM: NDArray[np.int64], secrets_R: NDArray[np.int64], text: int) -> ReleasedTokens:
            seed = int(np.random.default_rng([settings.seed, 2, text]).integers(2**62))
            return release_by_mechanism(votes_PM, mechanism, budget, secrets_R, SeededNoise(seed))

        return release

    found += [(control.value, None, by_control(control)) for control in Control]
    for mechanism in settings.mechanisms:
        for budget in sorted(settings.budgets, reverse=True):
            found.append((mechanism.value, budget, by_mechanism(mechanism, budget)))
    return found


def _count_emissions(
    tensor: VoteTensor,
    texts: CanaryTexts,
    votes_NM: NDArray[np.integer],
    settings: CanaryStudySettings,
    release: _Release,
) -> Emissions:
    shares, held = [], []
    for text, canary in enumerate(texts.canary_I):
        at = texts.secret_positions(text, tensor.offsets)
        secrets_R = np.random.default_rng([settings.seed, 0, text]).integers(
            tensor.num_worlds, size=settings.num_deployments
        )
        released = release(votes_NM[at].astype(np.int64), secrets_R, text)
        shares.append((released.tokens_NR == tensor.targets_N[at, None]).mean(axis=0))
        held.append(texts.members_CM[canary, secrets_R])
    text_A = np.repeat(np.arange(len(texts.tokens)), settings.num_deployments)
    return Emissions(np.concatenate(shares), text_A, np.concatenate(held))


def _by_membership(tokens_A: NDArray[np.float64], holds_A: NDArray[np.bool_]) -> EmissionByMembership | None:
    """None where all deployments are of one kind."""
    with_A, without_A = tokens_A[holds_A], tokens_A[~holds_A]
    if not with_A.size or not without_A.size:
        return None
    whole_with, whole_without = ((int((some == 1.0).sum()), some.size) for some in (with_A, without_A))
    low, high = newcombe_difference(whole_with, whole_without, CONFIDENCE)
    means = sample_mean(with_A), sample_mean(without_A)
    gap = means[0].value - means[1].value
    reach = float(norm.ppf(0.5 + 0.5 * CONFIDENCE)) * math.hypot(*(mean.standard_error or 0.0 for mean in means))
    return EmissionByMembership(
        tokens_with=means[0],
        tokens_without=means[1],
        whole_with=_rate(with_A == 1.0),
        whole_without=_rate(without_A == 1.0),
        advantage=Estimate(
            value=whole_with[0] / whole_with[1] - whole_without[0] / whole_without[1],
            low=low,
            high=high,
            confidence=CONFIDENCE,
        ),
        token_advantage=Estimate(value=gap, low=gap - reach, high=gap + reach, confidence=CONFIDENCE),
    )


def _rate(hits: NDArray[np.bool_]) -> Estimate:
    low, high = clopper_pearson(int(hits.sum()), hits.size, CONFIDENCE)
    return Estimate(value=float(hits.mean()), low=low, high=high, confidence=CONFIDENCE)


def _check(tensor: VoteTensor, texts: CanaryTexts) -> None:
    lengths = [len(tokens) - 1 for tokens in texts.tokens]
    if np.diff(tensor.offsets).tolist() != lengths or texts.members_CM.shape[1] != tensor.num_worlds:
        raise InvalidValueError("the votes are not those of these canary texts, or of another number of worlds")
    if not texts.members_CM.any():
        raise InvalidValueError("no canary is in any world; plant at least one")
