"""Three secrets, one table: how well attacks do against every way of protecting an adapted model.

| secret | attacker | what is measured |
|---|---|---|
| 1 record in the realised world | the curator's own posterior (`sessions`) | success in calling records members, mean |
| 1 the same | released tokens alone (`token_attack`) | over records and deployments |
| 2 record in the corpus, against never | chosen prompts (`corpus_attack`) | AUC and balanced accuracy |
| 3 a canary's secret | its prefix (`canary`) | share of answers that hold it whole |

The theorem about S bounds secret 1 and nothing else. Differential privacy (PMixED, DP-SGD) bounds secret 2. Nothing
here bounds secret 3 by itself. Each cell holds an estimate with its interval, or says why there is none.

Attackers of secret 1 may have the whole transcript: every position of every record, in one deployment with one S.
Beliefs about the controls' S come from an attacker who takes their tokens for the realised world's votes.

Shape suffixes: N positions, M worlds, I records, R deployments, U units.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from experiments.studies.corpus_attack import CorpusAttack, corpus_attack, match_scores
from experiments.studies.releases import ReleasedTokens, release_by_control, release_by_mechanism, release_noiseless
from experiments.studies.token_attack import AgreementLikelihood, ReleaseLikelihood, TokenLikelihood, token_beliefs
from reticent import _validate
from reticent._settings import FiniteModel
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control
from reticent.evaluation.sessions import SessionOutcomes, measured_half_success
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.pac.bounds import MEMBERSHIP_PRIOR, attack_success
from reticent.pac.mechanism import ReleaseMechanism
from reticent.randomness import SeededNoise
from reticent.stats.estimate import Estimate
from reticent.stats.means import CONFIDENCE, sample_mean

NO_WORLD = "no realised world: one model on all records"
NO_CURATOR = "no curator's posterior: no noisy vectors are drawn"
S_FREE = "exactly one half: S is not used"


class SecretsCell(FiniteModel):
    """An estimate with its interval, or the reason why there is none. Exactly one of the two."""

    estimate: Estimate | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _check_one_of_two(self) -> Self:
        if (self.estimate is None) == (self.reason is None):
            raise ValueError("a cell holds an estimate or a reason")
        return self


class SecretsRow(FiniteModel):
    """One protection.

    Attributes:
        method: its name.
        step_budget: b in nats, for a release mechanism, or of the release mechanism whose bound it was matched to.
        bound: the bound on membership success that it states for this transcript; None where it states none.
        bounded_secret: which secret `bound` is about, 1 or 2.
        curator, tokens: success about the realised world.
        corpus_auc, corpus_accuracy: about the corpus.
        extraction: of canaries.
    """

    method: str
    step_budget: float | None = None
    bound: float | None = None
    bounded_secret: int | None = None
    curator: SecretsCell
    tokens: SecretsCell
    corpus_auc: SecretsCell
    corpus_accuracy: SecretsCell
    extraction: SecretsCell


@dataclass(frozen=True)
class SecretsSettings:
    """Settings of the attacks and their number.

    Attributes:
        budgets: b in nats. mechanisms: the release mechanisms.
        num_deployments: R, each with its own S and randomness.
        num_token_deployments: how many of them the token-only attacker works on; its channels cost the most.
        seed: of all randomness.
    """

    budgets: Sequence[float] = (2.0**-8, 2.0**-20, 2.0**-32)
    mechanisms: Sequence[ReleaseMechanism] = tuple(ReleaseMechanism)
    num_deployments: int = 64
    num_token_deployments: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.integer_in_range("num_deployments", self.num_deployments, 2)
        _validate.integer_in_range("num_token_deployments", self.num_token_deployments, 2, self.num_deployments)
        _validate.integer_in_range("seed", self.seed, 0)
        for budget in self.budgets:
            _validate.positive_finite("budget", budget)


@dataclass(frozen=True)
class Candidates:
    """The records that attacks of secrets 1 and 2 are about, and what an attacker knows of them.

    Attributes:
        tensor: votes at every position of every record.
        decoder: which votes are released.
        members_I: which records are in the corpus, bool[I].
        surprise_N: −log p of the public model for each next token, in nats, float64[N].
        members_UM: which unit is in which world, bool[U, M].
    """

    tensor: VoteTensor
    decoder: Decoder
    members_I: NDArray[np.bool_]
    surprise_N: NDArray[np.float64]
    members_UM: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.members_I.size != self.tensor.spans.num_texts or self.surprise_N.size != self.tensor.num_positions:
            raise InvalidValueError("candidates need one membership a record and one surprise a position")

    @property
    def votes_NM(self) -> NDArray[np.int32]:  # noqa: N802
        """Each world's vote at each position."""
        return self.tensor.votes(self.decoder).worlds_NM

    @property
    def public_match_N(self) -> NDArray[np.bool_]:  # noqa: N802
        """True if the public model, with the same coins, votes for the record's next token."""
        matches: NDArray[np.bool_] = self.tensor.votes(self.decoder).public_N == self.tensor.targets_N
        return matches

    def corpus_attack(
        self, tokens_NR: NDArray[np.integer], seed: int, public_match_N: NDArray[np.floating] | None = None
    ) -> CorpusAttack:
        """Attack secret 2 on released tokens; see `corpus_attack.match_scores` for ρ, by default that of the coins."""
        expected_N = self.public_match_N if public_match_N is None else public_match_N
        tensor = self.tensor
        scores_RI = match_scores(tokens_NR, tensor.targets_N, expected_N, self.surprise_N, tensor.spans)
        return corpus_attack(scores_RI, self.members_I, seed)


Extraction = Callable[[str, float | None], SecretsCell]
"""The extraction cell of a method, at a budget where it has one."""


def secrets_rows(candidates: Candidates, settings: SecretsSettings, extraction: Extraction) -> list[SecretsRow]:
    """The rows of everything that votes: the unprotected models, the controls and the release mechanisms.

    Raises:
        InvalidValueError: shapes disagree or a value is out of range.
    """
    votes = candidates.tensor.votes(candidates.decoder)
    rows = [model_row(candidates, "public", votes.public_N[:, None], extraction("public", None), settings.seed)]
    if candidates.tensor.has_full:
        cell = extraction("full-data", None)
        rows.append(model_row(candidates, "full-data", votes.full_N[:, None], cell, settings.seed))
    secrets_R = np.random.default_rng([settings.seed, 0]).integers(
        candidates.tensor.num_worlds, size=settings.num_deployments
    )
    released = release_noiseless(candidates.votes_NM, secrets_R)
    rows.append(_row(candidates, settings, "noiseless", released, AgreementLikelihood(), extraction("noiseless", None)))
    request_N = candidates.tensor.spans.text_of_position()
    for number, control in enumerate(Control):
        generator = np.random.default_rng([settings.seed, 1, number])
        released = release_by_control(candidates.votes_NM, control, secrets_R, generator, request_N)
        rows.append(
            _row(candidates, settings, control.value, released, AgreementLikelihood(), extraction(control.value, None))
        )
    for mechanism in settings.mechanisms:
        for budget in sorted(settings.budgets, reverse=True):
            noise = SeededNoise(int(np.random.default_rng([settings.seed, 2]).integers(2**62)))
            released = release_by_mechanism(candidates.votes_NM, mechanism, budget, secrets_R, noise)
            attacker = ReleaseLikelihood(mechanism, budget)
            cell = extraction(mechanism.value, budget)
            rows.append(_row(candidates, settings, mechanism.value, released, attacker, cell, budget))
    return rows


def model_row(
    candidates: Candidates,
    method: str,
    tokens_NR: NDArray[np.integer],
    extraction: SecretsCell,
    seed: int,
    *,
    step_budget: float | None = None,
    bound: float | None = None,
    public_match_N: NDArray[np.floating] | None = None,
) -> SecretsRow:
    """The row of something without a realised world: one model, or a protection of the corpus such as PMixED.

    Args:
        candidates: the records.
        method: its name.
        tokens_NR: released tokens, one column a draw.
        extraction: the cell of secret 3.
        seed: of the attack's halves and resamples.
        step_budget: b of the release mechanism whose bound it was matched to.
        bound: on success about secret 2.
        public_match_N: ρ, where its coins are not the public ones.
    """
    attack = candidates.corpus_attack(tokens_NR, seed, public_match_N)
    return SecretsRow(
        method=method,
        step_budget=step_budget,
        bound=bound,
        bounded_secret=None if bound is None else 2,
        curator=SecretsCell(reason=NO_WORLD),
        tokens=SecretsCell(reason=NO_WORLD),
        corpus_auc=SecretsCell(estimate=attack.auc),
        corpus_accuracy=SecretsCell(estimate=attack.accuracy),
        extraction=extraction,
    )


def _row(
    candidates: Candidates,
    settings: SecretsSettings,
    method: str,
    released: ReleasedTokens,
    attacker: TokenLikelihood,
    extraction: SecretsCell,
    budget: float | None = None,
) -> SecretsRow:
    num_tokens = candidates.tensor.num_positions
    few = slice(0, settings.num_token_deployments)
    beliefs_RM = token_beliefs(candidates.votes_NM, released.tokens_NR[:, few], attacker)
    curator = SecretsCell(reason=S_FREE if method in set(Control) else NO_CURATOR)
    if released.log_weights_RM is not None:
        curator = _success(candidates, released.secrets_R, released.log_weights_RM)
    attack = candidates.corpus_attack(released.tokens_NR, settings.seed)
    return SecretsRow(
        method=method,
        step_budget=budget,
        bound=None if budget is None else attack_success(budget * num_tokens, MEMBERSHIP_PRIOR),
        bounded_secret=None if budget is None else 1,
        curator=curator,
        tokens=_success(candidates, released.secrets_R[few], beliefs_RM),
        corpus_auc=SecretsCell(estimate=attack.auc),
        corpus_accuracy=SecretsCell(estimate=attack.accuracy),
        extraction=extraction,
    )


def _success(candidates: Candidates, secrets_R: NDArray[np.int64], log_weights_RM: NDArray[np.float64]) -> SecretsCell:
    """Success in calling units members of the realised world, with Student's interval over deployments."""
    num_tokens = candidates.tensor.num_positions
    outcomes = SessionOutcomes(1.0, num_tokens, secrets_R, log_weights_RM, np.zeros(secrets_R.size))
    mean = sample_mean(measured_half_success(outcomes, candidates.members_UM))
    low, high = mean.interval() or (0.0, 1.0)
    return SecretsCell(
        estimate=Estimate(value=mean.value, low=max(low, 0.0), high=min(high, 1.0), confidence=CONFIDENCE)
    )
