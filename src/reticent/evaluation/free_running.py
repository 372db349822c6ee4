"""Deployments that really generate: prompts in, the curator's posterior out.

What `sessions` simulates on votes cast beforehand, with each released token fed back into the context. A forward pass
of all worlds a token: a check of the simulation more than a substitute for it. For experiments only: S and noise are
seeded.
"""

from collections.abc import Sequence

import numpy as np

from reticent.decoding.generate import generate
from reticent.decoding.votes import DecodingSettings
from reticent.errors import InvalidValueError
from reticent.evaluation.sessions import SessionOutcomes, SessionSettings
from reticent.pac.curator import Curator, CuratorState, ReleaseRecord
from reticent.pac.posterior import Posterior
from reticent.protocols import C, DraftingEnsemble
from reticent.randomness import PublicCoins, SeededNoise


class NothingKept:
    """A `pac.curator.ReleaseStore` for experiments, which nothing outlives."""

    def commit(self, state: CuratorState, records: Sequence[ReleaseRecord]) -> None:
        """Keep nothing."""

    def reconcile(self, state: CuratorState) -> CuratorState:
        """Do nothing: a commit cannot fail, so the state is what was committed."""
        return state


def free_running_sessions(
    ensemble: DraftingEnsemble[C],
    prompts: Sequence[Sequence[int]],
    decoding: DecodingSettings,
    settings: SessionSettings,
) -> SessionOutcomes:
    """Run `num_sessions` deployments of `num_queries` queries, each answered with `tokens_per_query` tokens.

    Args:
        ensemble: the public model and all worlds.
        prompts: token ids; each query takes one at random.
        decoding: decoder, budget and release mechanism.
        settings: how many sessions, queries and tokens; streams are of no use here.

    Raises:
        InvalidValueError: there is no prompt, or one leaves no room for an answer.
    """
    if not prompts:
        raise InvalidValueError("free-running sessions need at least one prompt")
    longest = ensemble.context_length - settings.tokens_per_query
    if max(map(len, prompts)) > longest:
        raise InvalidValueError(f"a prompt leaves no room for {settings.tokens_per_query} tokens; cut it to {longest}")
    states = []
    for session in range(settings.num_sessions):
        generator = np.random.default_rng([settings.seed, session])
        noise = SeededNoise(int(generator.integers(2**62)))
        uniform = Posterior.uniform(ensemble.num_worlds).log_weights
        state = CuratorState(noise.secret_index(ensemble.num_worlds), uniform)
        curator = Curator.for_experiments(state, NothingKept(), noise)
        for query in range(settings.num_queries):
            prompt = prompts[int(generator.integers(len(prompts)))]
            coins = PublicCoins.from_seed(settings.seed, session * settings.num_queries + query)
            for _ in generate(
                ensemble, prompt, decoding, curator, coins, f"{session}-{query}", settings.tokens_per_query
            ):
                pass
        states.append(curator.state)
    return SessionOutcomes(
        decoding.step_budget,
        settings.num_tokens,
        np.array([state.secret for state in states]),
        np.stack([state.log_posterior for state in states]),
        np.array([state.dissenting_steps / state.tokens_released for state in states]),
    )
