"""Simulated deployments, made once for each decoder, mechanism and budget; composition and leakage both read them."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.pac.common import Experiment
from experiments.pac.results import make_result_folder
from reticent._files import atomic_write
from reticent.benchmark.records import settings_hash
from reticent.decoding.votes import Decoder
from reticent.evaluation.sessions import SessionOutcomes, SessionSettings, simulate_sessions
from reticent.pac.mechanism import ReleaseMechanism


@dataclass(frozen=True)
class SimulatedDeployments:
    """Final states of deployments of one decoder, mechanism and budget."""

    decoder: Decoder
    mechanism: ReleaseMechanism
    outcomes: SessionOutcomes


def deployments(experiment: Experiment) -> Iterator[SimulatedDeployments]:
    """All combinations, by decoder, mechanism and falling budget."""
    combinations = [
        (decoder, mechanism, budget)
        for decoder in Decoder
        for mechanism in ReleaseMechanism
        for budget in sorted(experiment.settings.budgets, reverse=True)
    ]
    for number, (decoder, mechanism, budget) in enumerate(combinations, start=1):
        experiment.progress.note(f"deployments {number}/{len(combinations)}: {decoder}, {mechanism}, {budget:.3g} nats")
        yield SimulatedDeployments(decoder, mechanism, _outcomes(experiment, decoder, mechanism, budget))


def _outcomes(experiment: Experiment, decoder: Decoder, mechanism: ReleaseMechanism, budget: float) -> SessionOutcomes:
    settings = SessionSettings(**asdict(experiment.settings.sessions), seed=experiment.settings.seed)
    identity = {
        "votes": hashlib.sha256(experiment.votes.votes(decoder).worlds_NM.tobytes()).hexdigest(),
        "offsets": experiment.votes.offsets.tolist(),
        "decoder": decoder.value,
        "mechanism": mechanism.value,
        "budget": budget,
        "sessions": asdict(settings),
    }
    path = experiment.folder / "sessions" / f"{settings_hash(identity)[:16]}.npz"
    if not path.is_file():
        make_result_folder(path.parent)
        _save(simulate_sessions(experiment.votes, decoder, mechanism, budget, settings), path)
    with np.load(path) as arrays:
        return SessionOutcomes(
            budget, settings.num_tokens, arrays["secrets_R"], arrays["log_weights_RM"], arrays["dissent_R"]
        )


def _save(outcomes: SessionOutcomes, path: Path) -> None:
    def write(scratch: Path) -> None:
        with scratch.open("wb") as file:
            np.savez_compressed(
                file,
                secrets_R=outcomes.secrets_R,
                log_weights_RM=outcomes.log_weights_RM,
                dissent_R=outcomes.dissent_R,
            )

    atomic_write(path, write)
