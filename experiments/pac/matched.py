"""PAC against PMixED at an equal bound on membership, over the same number of released tokens.

Both get, at every horizon T, the membership success that 2^-32 nats a token bound over a million tokens: PAC spends
that total, b = 2^-32 · 10^6 / T, and PMixED has its radius calibrated so that a reading of its own accounting stays at
or below that success. N, q and α are chosen on validation texts for each horizon and reading; the choice is then
measured on test texts, with exact projections. Both sample at the same temperature.

Shape suffixes: P positions, N experts.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.pac.common import Experiment, run_script
from experiments.pac.experts import (
    AtTarget,
    Opinions,
    Place,
    opinions,
    shard_training,
    spread_places,
    target_probabilities,
)
from experiments.pac.matched_blocks import Ceilings, MatchedSetting, matched_blocks
from experiments.pac.pmixed_choice import Choice, choose
from experiments.pac.results import Findings
from experiments.studies.matched import (
    Floats,
    MatchedRow,
    OneOrderRow,
    accuracy,
    headroom,
    noiseless_probability,
    pac_probability,
)
from experiments.studies.pmixed import PMixedSettings, mixing_weights, projection_orders
from experiments.studies.projection_gap import excess, one_order_weights
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.pac.bounds import MEMBERSHIP_PRIOR, attack_success
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.randomness import SeededNoise

TOTAL_NATS = 2.0**-32 * 10**6
"""What PAC may release at every horizon, in nats."""
_RADIUS_OF_ONE_ORDER = 1e-3
_OUTSIDE = 1.0 + 1e-6


def measure(experiment: Experiment) -> Findings:
    """Choose on validation texts, measure on test texts."""
    sizes = experiment.settings.matched
    bound = attack_success(TOTAL_NATS, MEMBERSHIP_PRIOR)
    choices = choose(experiment, bound)
    lengths = [len(tokens) for tokens in experiment.tokens(experiment.texts.test)]
    places = spread_places(lengths, experiment.settings.votes.logits_every, sizes.test_positions)
    test = _measure_models(experiment, places, [choice.settings for choice in choices])
    pac = _Pac.of(experiment, places, test)
    rows = [_pmixed_row(test, choice) for choice in choices]
    for mechanism in ReleaseMechanism:
        for horizon in sizes.horizons:
            experiment.progress.note(f"PAC, {mechanism}, {horizon:,} tokens")
            rows.append(_pac_row(experiment, test, pac, mechanism, horizon))
    setting = MatchedSetting(
        bound=bound,
        total_nats=TOTAL_NATS,
        positions=len(places),
        shard_epochs={count: shard_training(experiment, count).epochs for count in sizes.shards},
        sizes=sizes,
        num_worlds=experiment.settings.num_worlds,
    )
    ceilings = _ceilings(test, pac)
    results = {
        "membership_bound": bound,
        "total_nats": TOTAL_NATS,
        "positions": len(places),
        "shard_epochs": setting.shard_epochs,
        "ceilings": ceilings,
        "rows": rows,
        "one_order": test.one_order,
    }
    return Findings(
        "PAC and PMixED at an equal bound on membership",
        results,
        matched_blocks(rows, test.one_order, ceilings, setting),
    )


@dataclass(frozen=True)
class _Test:
    """The models' probabilities at the test positions.

    Attributes:
        found: of the next token.
        inside_P: the public model's probability of PAC's candidates.
        weights: λ under the settings that were chosen, float64[P, N].
        one_order: what checking one order changes.
    """

    found: list[AtTarget]
    inside_P: Floats
    weights: dict[PMixedSettings, Floats]
    one_order: list[OneOrderRow]

    @property
    def text_P(self) -> NDArray[np.int64]:  # noqa: N802
        return np.array([one.text for one in self.found])

    @property
    def public_P(self) -> Floats:  # noqa: N802
        return np.array([one.public for one in self.found])

    @property
    def full_P(self) -> Floats:  # noqa: N802
        return np.array([one.full for one in self.found])


def _measure_models(experiment: Experiment, places: Sequence[Place], chosen: Sequence[PMixedSettings]) -> _Test:
    sizes, tensor = experiment.settings.matched, experiment.votes
    found: list[AtTarget] = []
    inside: list[float] = []
    weights: dict[PMixedSettings, list[NDArray[np.float64]]] = {settings: [] for settings in chosen}
    gaps = {order: _OneOrder(order, _RADIUS_OF_ONE_ORDER) for order in sizes.max_orders}
    every = -(-len(places) // sizes.order_positions)
    experiment.progress.begin("PMixED on test texts", len(places))
    for number, one in enumerate(opinions(experiment, experiment.texts.test, places)):
        found.append(one.at_target())
        inside.append(float(one.public_V[tensor.candidates_NK[_position(tensor, one.place)]].sum()))
        for settings, so_far in weights.items():
            experts_NV, orders = one.experts[settings.num_shards], projection_orders(settings.max_order)
            so_far.append(mixing_weights(experts_NV, one.public_V, settings.beta, orders))
        if number % every == 0:
            for gap in gaps.values():
                gap.add(one, min(sizes.shards))
        experiment.progress.advance(1)
    stacked = {settings: np.stack(parts) for settings, parts in weights.items()}
    return _Test(found, np.array(inside), stacked, [gap.row() for gap in gaps.values()])


def _position(tensor: VoteTensor, place: Place) -> int:
    """A place among all positions of the votes."""
    return int(tensor.offsets[place.text]) + place.position


class _OneOrder:
    """Gathers what checking the ball at one order changes."""

    def __init__(self, order: int, beta: float) -> None:
        self._order, self._beta = order, beta
        self._weights: list[float] = []
        self._one_order: list[float] = []
        self._excess: list[float] = []

    def add(self, one: Opinions, num_shards: int) -> None:
        """Project the experts of one number of shards at one place, both ways."""
        experts_NV, public_V, orders = one.experts[num_shards], one.public_V, projection_orders(self._order)
        weights_N = mixing_weights(experts_NV, public_V, self._beta, orders)
        loose_N = one_order_weights(experts_NV, public_V, self._beta, self._order)
        self._weights += weights_N.tolist()
        self._one_order += loose_N.tolist()
        for weight, expert_V in zip(loose_N, experts_NV, strict=True):
            self._excess.append(excess(public_V + weight * (expert_V - public_V), public_V, self._beta, orders))

    def row(self) -> OneOrderRow:
        """The finding as a row."""
        return OneOrderRow(
            max_order=self._order,
            beta=self._beta,
            weight=float(np.mean(self._weights)),
            one_order_weight=float(np.mean(self._one_order)),
            largest_excess=max(self._excess),
            share_outside=float(np.mean(np.array(self._excess) > _OUTSIDE)),
        )


@dataclass(frozen=True)
class _Pac:
    """PAC's votes at the same places.

    Attributes:
        scores: each world's logits at the candidates, over the temperature.
        targets: the place of the next token among the candidates, or None.
        public_P: the public model's probability of the next token if it, too, is held to the candidates.
    """

    scores: list[NDArray[np.float64]]
    targets: list[int | None]
    public_P: Floats

    @classmethod
    def of(cls, experiment: Experiment, places: Sequence[Place], test: "_Test") -> "_Pac":
        """Read them from the shared votes."""
        tensor = experiment.votes
        kept = {int(position): index for index, position in enumerate(tensor.logit_positions_F)}
        scores, targets, public = [], [], []
        for place, one, inside in zip(places, test.found, test.inside_P, strict=True):
            position = _position(tensor, place)
            logits_MK = tensor.logits_FMK[kept[position]].astype(np.float64)
            scores.append(logits_MK / experiment.settings.votes.temperature)
            among = np.flatnonzero(tensor.candidates_NK[position] == tensor.targets_N[position])
            targets.append(int(among[0]) if among.size else None)
            public.append(one.public / inside if among.size else 0.0)
        return cls(scores, targets, np.array(public))

    def noiseless(self) -> Floats:
        """The probability of the next token under a noiseless world, at each place."""
        return np.array([noiseless_probability(*pair) for pair in zip(self.scores, self.targets, strict=True)])

    def release_probabilities(self, release: ReleaseMechanism, step_budget: float, num_draws: int, seed: int) -> Floats:
        """The probability of releasing the next token, at each place."""
        mechanism = mechanism_for(release, step_budget)
        noise, generator = SeededNoise(seed), np.random.default_rng(seed)
        return np.array(
            [
                pac_probability(scores_MK, target, mechanism, generator, noise, num_draws)
                for scores_MK, target in zip(self.scores, self.targets, strict=True)
            ]
        )


def _ceilings(test: _Test, pac: _Pac) -> Ceilings:
    means = {
        "public model": test.public_P,
        "public model, candidates alone": pac.public_P,
        "noiseless world, candidates alone": pac.noiseless(),
        "adapter on all records": test.full_P,
    }
    for count in test.found[0].experts:
        means[f"mean of {count} experts"] = target_probabilities(test.found, count).ensemble()
    return Ceilings(accuracies={name: accuracy(values_P, test.text_P) for name, values_P in means.items()})


def _pmixed_row(test: _Test, choice: Choice) -> MatchedRow:
    settings = choice.settings
    targets = target_probabilities(test.found, settings.num_shards)
    released_P = targets.pmixed(test.weights[settings], settings.sampling_rate)
    return MatchedRow(
        method="pmixed",
        horizon=choice.horizon,
        reading=choice.reading.value,
        num_shards=settings.num_shards,
        sampling_rate=settings.sampling_rate,
        max_order=settings.max_order,
        beta=settings.beta,
        accuracy=accuracy(released_P, test.text_P),
        of_own_ceiling=headroom(released_P, test.public_P, targets.ensemble(), test.text_P),
        of_full_data=headroom(released_P, test.public_P, test.full_P, test.text_P),
    )


def _pac_row(experiment: Experiment, test: _Test, pac: _Pac, mechanism: ReleaseMechanism, horizon: int) -> MatchedRow:
    step_budget = TOTAL_NATS / horizon
    draws, seed = experiment.settings.matched.num_draws, experiment.settings.seed
    released_P = pac.release_probabilities(mechanism, step_budget, draws, seed)
    return MatchedRow(
        method=mechanism.value,
        horizon=horizon,
        step_budget=step_budget,
        accuracy=accuracy(released_P, test.text_P),
        of_own_ceiling=headroom(released_P, pac.public_P, pac.noiseless(), test.text_P),
        of_full_data=headroom(released_P, test.public_P, test.full_P, test.text_P),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("matched", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
