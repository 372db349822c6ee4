"""The closed registry of attacks: their names, titles, sources and needs, and one way to call them all."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from reticent.auditing.attacks.evidence import AbsentIngredientError, Missing, Need, Score, TextEvidence, require
from reticent.auditing.attacks.ez_mia import ez_mia
from reticent.auditing.attacks.gradient_norm import gradient_norm
from reticent.auditing.attacks.likelihood import likelihood
from reticent.auditing.attacks.lira import lira
from reticent.auditing.attacks.min_k import min_k
from reticent.auditing.attacks.min_k_plus_plus import min_k_plus_plus
from reticent.auditing.attacks.neighbourhood import neighbourhood
from reticent.auditing.attacks.petal import petal, petal_with_reference
from reticent.auditing.attacks.recall import recall
from reticent.auditing.attacks.reference import reference
from reticent.auditing.attacks.rmia import log_probability_ratio, rmia
from reticent.auditing.attacks.samia import samia
from reticent.auditing.attacks.spv import spv
from reticent.auditing.attacks.wbc import wbc
from reticent.auditing.attacks.zlib_entropy import zlib_entropy
from reticent.errors import InvalidValueError
from reticent.protocols import TokenSignals


class AttackName(StrEnum):
    """The name of an attack, as on the command line and in reports."""

    LIKELIHOOD = "likelihood"
    REFERENCE = "reference"
    ZLIB = "zlib"
    NEIGHBOURHOOD = "neighbourhood"
    MIN_K = "min-k"
    MIN_K_PLUS_PLUS = "min-k++"
    GRADIENT_NORM = "gradient-norm"
    EZ_MIA = "ez-mia"
    WBC = "wbc"
    RMIA = "rmia"
    LIRA = "lira"
    SPV = "spv"
    RECALL = "recall"
    SAMIA = "samia"
    PETAL = "petal"
    PETAL_REFERENCE = "petal-reference"


@dataclass(frozen=True)
class Attack:
    """A membership-inference attack: a pure function of one text's evidence. More score = more likely a member."""

    name: AttackName
    title: str
    source: str
    needs: frozenset[Need]
    compute: Callable[[TextEvidence], Score]

    @property
    def is_white_box(self) -> bool:
        """True if the attack needs the model's weights, not its outputs alone."""
        return Need.GRADIENT in self.needs

    def score(self, evidence: TextEvidence) -> Score:
        """The score of one text, or why there is none. Never NaN; +inf is the top of the ranking."""
        try:
            score = self.compute(evidence)
        except AbsentIngredientError as absent:
            return Missing(str(absent))
        if isinstance(score, float) and math.isnan(score):
            return Missing("the model's log-probabilities for the text are not numbers")
        return score


def _target(evidence: TextEvidence) -> TokenSignals:
    return require(evidence.target, Need.TARGET)


def _reference(evidence: TextEvidence) -> TokenSignals:
    return require(evidence.reference, Need.REFERENCE)


def _rmia(evidence: TextEvidence) -> Score:
    mean_logp = likelihood(_target(evidence))
    shadows = require(evidence.shadows, Need.SHADOWS)
    if isinstance(mean_logp, Missing):
        return mean_logp
    if len(shadows.out_means) == 0:
        return Missing("every shadow model was trained on the text")
    log_ratio = log_probability_ratio(mean_logp, shadows.out_means, shadows.offline_a)
    return rmia(log_ratio, shadows.population_log_ratios)


def _lira(evidence: TextEvidence) -> Score:
    mean_logp = likelihood(_target(evidence))
    shadows = require(evidence.shadows, Need.SHADOWS)
    if isinstance(mean_logp, Missing):
        return mean_logp
    return lira(mean_logp, shadows.in_means, shadows.out_means, shadows.variances)


def _spv(evidence: TextEvidence) -> Score:
    target, calibration = _target(evidence), require(evidence.self_prompted, Need.SELF_PROMPTED)
    return spv(target, calibration.paraphrases_target, calibration.reference, calibration.paraphrases_reference)


def _samia(evidence: TextEvidence) -> Score:
    sampled = require(evidence.samples, Need.SAMPLES)
    return samia(sampled.rest, sampled.samples)


def _petal(evidence: TextEvidence) -> Score:
    guesses = require(evidence.guesses, Need.GUESSES)
    return petal(guesses.target, guesses.surrogate, guesses.surrogate_logp)


def _petal_with_reference(evidence: TextEvidence) -> Score:
    guesses = require(evidence.guesses, Need.GUESSES)
    return petal_with_reference(guesses.target, guesses.surrogate)


def _attack(
    name: AttackName, title: str, source: str, needs: tuple[Need, ...], compute: Callable[[TextEvidence], Score]
) -> tuple[AttackName, Attack]:
    return name, Attack(name, title, source, frozenset((Need.TARGET, *needs)), compute)


def _label_only(
    name: AttackName, title: str, source: str, need: Need, compute: Callable[[TextEvidence], Score]
) -> tuple[AttackName, Attack]:
    """An attack on what the target writes, without any log-probability of it."""
    return name, Attack(name, title, source, frozenset((need,)), compute)


ATTACKS: dict[AttackName, Attack] = dict(
    (
        _attack(AttackName.LIKELIHOOD, "Likelihood", "Yeom 2018", (), lambda e: likelihood(_target(e))),
        _attack(
            AttackName.REFERENCE,
            "Likelihood with reference",
            "Carlini 2021",
            (Need.REFERENCE,),
            lambda e: reference(_target(e), _reference(e)),
        ),
        _attack(
            AttackName.ZLIB,
            "Zlib",
            "Carlini 2021",
            (Need.TEXT,),
            lambda e: zlib_entropy(_target(e), require(e.text, Need.TEXT)),
        ),
        _attack(
            AttackName.NEIGHBOURHOOD,
            "Neighbourhood",
            "Mattern 2023",
            (Need.NEIGHBOURS,),
            lambda e: neighbourhood(_target(e), require(e.neighbour_means, Need.NEIGHBOURS)),
        ),
        _attack(AttackName.MIN_K, "Min-K%", "Shi 2024", (), lambda e: min_k(_target(e))),
        _attack(AttackName.MIN_K_PLUS_PLUS, "Min-K%++", "Zhang 2024", (), lambda e: min_k_plus_plus(_target(e))),
        _attack(
            AttackName.GRADIENT_NORM,
            "Gradient norm",
            "arXiv 2402.17012",
            (Need.GRADIENT,),
            lambda e: gradient_norm(require(e.gradient_norm, Need.GRADIENT)),
        ),
        _attack(
            AttackName.EZ_MIA,
            "EZ-MIA",
            "arXiv 2601.12104",
            (Need.REFERENCE,),
            lambda e: ez_mia(_target(e), _reference(e)),
        ),
        _attack(AttackName.WBC, "WBC", "arXiv 2601.02751", (Need.REFERENCE,), lambda e: wbc(_target(e), _reference(e))),
        _attack(AttackName.RMIA, "RMIA (offline)", "arXiv 2312.03262", (Need.SHADOWS,), _rmia),
        _attack(AttackName.LIRA, "LiRA (online)", "Carlini 2022", (Need.SHADOWS,), _lira),
        _attack(AttackName.SPV, "SPV-MIA", "NeurIPS 2024, arXiv 2311.06062", (Need.SELF_PROMPTED,), _spv),
        _attack(
            AttackName.RECALL,
            "ReCaLL",
            "arXiv 2406.15968",
            (Need.PREFIX,),
            lambda e: recall(require(e.prefixed, Need.PREFIX), _target(e)),
        ),
        _label_only(AttackName.SAMIA, "SaMIA", "arXiv 2404.11262", Need.SAMPLES, _samia),
        _label_only(AttackName.PETAL, "PETAL", "arXiv 2502.18943", Need.GUESSES, _petal),
        _label_only(
            AttackName.PETAL_REFERENCE,
            "PETAL with reference",
            "own, after arXiv 2502.18943",
            Need.GUESSES,
            _petal_with_reference,
        ),
    )
)


def parse_attacks(text: str) -> tuple[Attack, ...]:
    """The attacks that "all" or a comma-separated list names, in the registry's order, each once.

    Raises:
        InvalidValueError: a name is unknown or the list is empty; the message lists the names.
    """
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    known = ", ".join(ATTACKS)
    if not names:
        raise InvalidValueError(f"no attack named; use all, or a list of {known}")
    unknown = names - {"all", *ATTACKS}
    if unknown:
        raise InvalidValueError(f"there is no attack {', '.join(sorted(unknown))}; use all, or a list of {known}")
    return tuple(attack for name, attack in ATTACKS.items() if "all" in names or name in names)
