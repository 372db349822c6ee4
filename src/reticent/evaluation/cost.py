"""Cost: what a forward pass and a release take, and how many operations a release needs.

Operations are counted, not timed. Over d coordinates the method as published takes an eigendecomposition of the m
votes' covariance and a noise matrix, m² d + d² multiplications (arXiv 2609.05676: 3.35e9 for a vocabulary of 50,257
and m = 128). Nobody votes outside the candidates, and the covariance vanishes outside the a distinct votes; so d falls
from the vocabulary to k to a, and unanimous steps need no noise at all.

Seconds are wall time of this process on this machine, for orders of magnitude; `benchmarks/` measures with care.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent._settings import FiniteModel
from reticent.decoding.votes import Decoder
from reticent.engine.engine import Engine
from reticent.evaluation.discarding_store import DiscardingStore
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.posterior import Posterior
from reticent.randomness import SeededNoise
from reticent.stats.means import Mean, ratio, sample_mean


class OperationCount(FiniteModel):
    """Multiplications of one release over `coordinates` coordinates, mean over steps."""

    space: str
    coordinates: float
    operations: float


class Cost(FiniteModel):
    """The cost of one decoder's tokens.

    Attributes:
        reading_seconds: seconds a position to read texts with all worlds, standard error over texts.
        decoding_seconds: seconds a token to decode with all worlds; None unless measured.
        release_seconds: seconds a release, unanimous ones included, standard error over releases.
        dissent_release_seconds: seconds a dissenting release; None without one.
        active_counts: for each number of distinct votes, how many positions have it.
        operations: the whole vocabulary, the candidates, the distinct votes.
    """

    decoder: Decoder
    num_worlds: int
    num_candidates: int
    vocab_size: int
    reading_seconds: Mean
    decoding_seconds: Mean | None
    release_seconds: Mean
    dissent_release_seconds: Mean | None
    active_counts: dict[int, int]
    operations: tuple[OperationCount, ...]


def release_operations(coordinates: int, num_worlds: int) -> int:
    """Multiplications of one release over d coordinates: m² d for the covariance's eigenpairs and d² for the noise."""
    _validate.integer_in_range("coordinates", coordinates, 1)
    return num_worlds * num_worlds * coordinates + coordinates * coordinates


def cost(
    tensor: VoteTensor,
    decoder: Decoder,
    vocab_size: int,
    step_budget: float,
    num_releases: int = 2000,
    decoding_seconds: Sequence[float] = (),
) -> Cost:
    """Measure what tokens cost.

    Args:
        tensor: votes, whose texts' reading times it holds.
        decoder: how worlds vote.
        vocab_size: V.
        step_budget: b of the timed releases, in nats.
        num_releases: number of releases to time, from the first position on.
        decoding_seconds: seconds of some decode steps, from `decode_seconds`.
    """
    votes, num_worlds = tensor.votes(decoder), tensor.num_worlds
    seconds_T = _release_seconds(votes.worlds_NM[:num_releases], step_budget)
    dissent_T = votes.dissent[:num_releases]
    counts = np.bincount(votes.num_active)
    active_counts = {int(a): int(counts[a]) for a in np.flatnonzero(counts)}
    return Cost(
        decoder=decoder,
        num_worlds=num_worlds,
        num_candidates=tensor.num_candidates,
        vocab_size=vocab_size,
        reading_seconds=ratio(tensor.seconds_I, np.diff(tensor.offsets).astype(np.float64)),
        decoding_seconds=sample_mean(decoding_seconds) if decoding_seconds else None,
        release_seconds=sample_mean(seconds_T),
        dissent_release_seconds=sample_mean(seconds_T[dissent_T]) if dissent_T.any() else None,
        active_counts=active_counts,
        operations=(
            _operations("vocabulary", {vocab_size: 1}, num_worlds),
            _operations("candidates", {tensor.num_candidates: 1}, num_worlds),
            _operations("distinct votes", active_counts, num_worlds),
            _operations("distinct votes, unanimous steps free", active_counts, num_worlds, free_up_to=1),
        ),
    )


def decode_seconds(engine: Engine, prompt: Sequence[int], num_tokens: int) -> list[float]:
    """Seconds of each of `num_tokens` decode steps after a prompt: one more token, all worlds' logits at one candidate.

    Raises:
        InvalidValueError: the context window is too small.
    """
    _validate.integer_in_range("num_tokens", num_tokens, 1, engine.context_length - len(prompt))
    context = engine.open(prompt)
    candidates_K = np.arange(1)
    seconds = []
    for _ in range(num_tokens):
        token = int(engine.public_logits(context).argmax())
        began = time.perf_counter()
        engine.extend([context], [token])
        engine.public_logits(context)
        engine.world_logits(context, candidates_K)
        seconds.append(time.perf_counter() - began)
    return seconds


def _release_seconds(votes_TM: NDArray[np.int32], step_budget: float) -> NDArray[np.float64]:
    num_worlds = votes_TM.shape[1]
    state = CuratorState(0, Posterior.uniform(num_worlds).log_weights)
    curator = Curator.for_experiments(state, DiscardingStore(), SeededNoise(0))
    charging, seconds = Charging(step_budget), []
    for step, votes_M in enumerate(votes_TM.astype(np.int64)):
        began = time.perf_counter()
        curator.release(votes_M, charging, request="cost", step=step)
        seconds.append(time.perf_counter() - began)
    return np.array(seconds)


def _operations(
    space: str, positions_of_coordinates: Mapping[int, int], num_worlds: int, free_up_to: int = 0
) -> OperationCount:
    total = sum(positions_of_coordinates.values())
    coordinates = sum(d * count for d, count in positions_of_coordinates.items())
    operations = sum(
        release_operations(d, num_worlds) * count for d, count in positions_of_coordinates.items() if d > free_up_to
    )
    return OperationCount(space=space, coordinates=coordinates / total, operations=operations / total)
