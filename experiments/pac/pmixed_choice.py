"""PMixED's number of shards, sampling rate and order for each horizon and reading, chosen on validation texts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.pac.common import Experiment
from experiments.pac.experts import AtTarget, opinions, spread_places, target_probabilities
from experiments.pac.radii import Radii
from experiments.studies.matched import WeightTable, select_best
from experiments.studies.pmixed import PMixedSettings, mixing_weights, projection_orders
from experiments.studies.pmixed_calibration import Reading

RADII = tuple(10.0**power for power in range(-8, 1))
"""Radii at which λ is computed; between them it is interpolated, for the choice alone."""

_Key = tuple[int, int]
"""Number of shards and order."""


@dataclass(frozen=True)
class Choice:
    """PMixED's settings for a horizon and reading."""

    horizon: int
    reading: Reading
    settings: PMixedSettings


def choose(experiment: Experiment, target_success: float) -> list[Choice]:
    """For each horizon and reading the settings of largest expected accuracy on validation texts.

    Args:
        experiment: the setting.
        target_success: membership success that every candidate's radius is calibrated to.
    """
    sizes = experiment.settings.matched
    found, tables = _tabulate_weights(experiment)
    targets = {count: target_probabilities(found, count) for count in sizes.shards}

    def held_out(settings: PMixedSettings) -> float:
        weights_PN = tables[settings.num_shards, settings.max_order].at(settings.beta)
        return float(targets[settings.num_shards].pmixed(weights_PN, settings.sampling_rate).mean())

    radii = Radii(experiment.work / "radii.json", target_success)
    choices = []
    for horizon in sizes.horizons:
        experiment.progress.note(f"PMixED: radii for {horizon:,} tokens")
        for reading in Reading:
            candidates = [
                radii.settings(count, rate, order, horizon, reading)
                for count in sizes.shards
                for rate in sizes.sampling_rates
                for order in sizes.max_orders
            ]
            choices.append(Choice(horizon, reading, select_best(candidates, held_out)[0]))
    return choices


def _tabulate_weights(experiment: Experiment) -> tuple[list[AtTarget], dict[_Key, WeightTable]]:
    """Tabulate the models' probabilities of the next tokens of validation texts, and λ at every tabulated radius."""
    texts, sizes = experiment.texts.validation, experiment.settings.matched
    lengths = [len(tokens) for tokens in experiment.tokens(texts)]
    places = spread_places(lengths, experiment.settings.votes.logits_every, sizes.selection_positions)
    found: list[AtTarget] = []
    weights: dict[_Key, list[NDArray[np.float64]]] = {}
    experiment.progress.begin("PMixED on validation texts", len(places))
    for one in opinions(experiment, texts, places):
        found.append(one.at_target())
        for count, experts_NV in one.experts.items():
            for order in sizes.max_orders:
                orders = projection_orders(order)
                weights_BN = np.stack([mixing_weights(experts_NV, one.public_V, beta, orders) for beta in RADII])
                weights.setdefault((count, order), []).append(weights_BN)
        experiment.progress.advance(1)
    return found, {key: WeightTable(np.array(RADII), np.stack(parts, axis=1)) for key, parts in weights.items()}
