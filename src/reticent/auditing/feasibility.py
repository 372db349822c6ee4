"""The attacks that a target allows, decided before anything is scored, and the reasons for leaving others out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reticent.auditing.attacks.evidence import Need
from reticent.auditing.attacks.registry import Attack, AttackName
from reticent.auditing.inputs.places import PlacedScorer
from reticent.auditing.results import SkippedAttack
from reticent.auditing.targets.endpoint import RemoteScorer, TextOnlyScorer
from reticent.auditing.targets.scoring import ModelScorer
from reticent.auditing.targets.targets import Target, TargetKind
from reticent.auditing.targets.top_logprobs import TopLogprobScorer
from reticent.errors import AuditError

_ENDPOINT_SHOWS_NO_WEIGHTS = "a server shows no weights; this attack is white-box, audit the model's own folder instead"


_NEEDS_EVERY_TOKEN = (AttackName.EZ_MIA, AttackName.WBC)
"""Attacks that go by differences token by token, for which bounds of some tokens give none."""

_LIRA_NEEDS_SHADOWS = (
    "it needs models trained like the target, some with and some without each text: adapt four or more with the "
    "target's command and another --split-seed each and give their folders with --shadow, or audit a world of a "
    "run directory, whose other worlds serve"
)


@dataclass(frozen=True)
class AttackPlan:
    """The attacks that will run and those that cannot."""

    attacks: tuple[Attack, ...]
    skipped: tuple[SkippedAttack, ...]

    @property
    def needs(self) -> frozenset[Need]:
        """Everything the attacks need together."""
        return frozenset().union(*(attack.needs for attack in self.attacks))

    def without(self, reasons: Mapping[AttackName, str]) -> "AttackPlan":
        """The same plan, some of its attacks left out for these reasons."""
        left_out = tuple(_skip(attack, reasons[attack.name]) for attack in self.attacks if attack.name in reasons)
        return AttackPlan(
            tuple(attack for attack in self.attacks if attack.name not in reasons), (*self.skipped, *left_out)
        )

    def without_needs(self, failures: Mapping[Need, str]) -> "AttackPlan":
        """The same plan without the attacks that need what could not be had."""
        unmet = {attack.name: sorted(attack.needs & failures.keys()) for attack in self.attacks}
        return self.without({name: failures[needs[0]] for name, needs in unmet.items() if needs})


def plan_attacks(
    attacks: Sequence[Attack], target: Target, *, by_name: bool, has_masked_lm: bool, has_shadows: bool
) -> AttackPlan:
    """Divide attacks into those that a target allows and those that it does not.

    Args:
        attacks: those asked for.
        target: what is audited.
        by_name: whether the user named them; an attack that was named and cannot run is an error.
        has_masked_lm: whether a masked language model was given for neighbours.
        has_shadows: whether shadow models were given or come with the target.

    Raises:
        AuditError: a named attack cannot run, or none can.
    """
    obstacles = _obstacles(target, has_masked_lm=has_masked_lm, has_shadows=has_shadows)
    obstacles |= _obstacles_to_text(target, by_name=by_name)
    reasons = {attack.name: _reason(attack, target, obstacles, has_shadows) for attack in attacks}
    refused = [(name, reason) for name, reason in reasons.items() if reason is not None]
    if by_name and refused:
        name, reason = refused[0]
        raise AuditError(f"attack {name} cannot run on this target: {reason}")
    possible = tuple(attack for attack in attacks if reasons[attack.name] is None)
    if not possible:
        raise AuditError("no attack can run on this target: " + "; ".join(f"{n}: {r}" for n, r in refused))
    skipped = tuple(_skip(attack, obstacle) for attack in attacks if (obstacle := reasons[attack.name]) is not None)
    return AttackPlan(possible, skipped)


def _skip(attack: Attack, reason: str) -> SkippedAttack:
    return SkippedAttack(name=str(attack.name), title=attack.title, source=attack.source, reason=reason)


def _reason(attack: Attack, target: Target, obstacles: Mapping[Need, str], has_shadows: bool) -> str | None:
    for need in sorted(attack.needs, key=lambda need: (need is not Need.TARGET, need)):
        if need in obstacles:
            return obstacles[need]
    if attack.name is AttackName.LIRA and not has_shadows:
        return _LIRA_NEEDS_SHADOWS
    if attack.name in _NEEDS_EVERY_TOKEN and isinstance(target.scorer, TopLogprobScorer):
        return "it needs every token's log-probability, and the server shows those of its most likely ones"
    if attack.name is AttackName.MIN_K_PLUS_PLUS and target.kind is TargetKind.ENDPOINT:
        return "a server does not show its distribution over the vocabulary"
    return None


def _obstacles(target: Target, *, has_masked_lm: bool, has_shadows: bool) -> dict[Need, str]:
    """The needs that cannot be met, and why."""
    obstacles: dict[Need, str] = {}
    is_endpoint = target.kind is TargetKind.ENDPOINT
    is_local = isinstance(target.scorer, ModelScorer)
    if target.reference is None:
        obstacles[Need.REFERENCE] = "there is no reference model: name one with --reference"
    if not has_shadows and target.reference is None:
        obstacles[Need.SHADOWS] = "there are no shadow models: give --shadow, or a --reference, which serves RMIA"
    if not has_masked_lm and not is_local:
        obstacles[Need.NEIGHBOURS] = "neighbours need a masked language model here: name one with --mlm"
    if target.num_trained == 0:
        obstacles[Need.GRADIENT] = (
            _ENDPOINT_SHOWS_NO_WEIGHTS
            if is_endpoint
            else "this technique trains no parameters, so there is no gradient"
        )
    if is_local and target.base is None:
        obstacles[Need.SELF_PROMPTED] = "it trains the base again, and nobody said which that is: name it with --model"
    if not is_local:
        why = _ENDPOINT_SHOWS_NO_WEIGHTS if is_endpoint else "the model's weights are not available"
        obstacles[Need.SELF_PROMPTED] = why
    if not is_local and not isinstance(target.scorer, RemoteScorer):
        obstacles[Need.PREFIX] = "it needs the log-probabilities of a prompt, or the model's weights"
    return obstacles


def _obstacles_to_text(target: Target, *, by_name: bool) -> dict[Need, str]:
    """Obstacles to attacks on log-probabilities, where a server shows none, and to those on text alone."""
    obstacles: dict[Need, str] = {}
    if target.client is None:
        reason = "it is for servers that show text alone; this target's log-probabilities say more"
        return {Need.SAMPLES: reason, Need.GUESSES: reason}
    if not isinstance(target.reference, ModelScorer | PlacedScorer):
        obstacles[Need.GUESSES] = "it learns on a public model: name the one before adaptation with --reference"
    if isinstance(target.scorer, TextOnlyScorer):
        obstacles[Need.TARGET] = "the server shows no log-probabilities, only text"
    elif not by_name:
        reason = "the server's log-probabilities say more at less cost; name the attack to run it"
        obstacles |= {Need.SAMPLES: reason, Need.GUESSES: reason}
    return obstacles
