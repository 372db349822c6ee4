"""Deployments that generate, against the same deployments on votes cast beforehand."""

import numpy as np
import pytest

from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.errors import InvalidValueError
from reticent.evaluation.free_running import free_running_sessions
from reticent.evaluation.leakage import refinement_nats
from reticent.evaluation.sessions import SessionSettings


class Context:
    def __init__(self, tokens):
        self.tokens = list(tokens)

    @property
    def length(self):
        return len(self.tokens)


class SplitEnsemble:
    """Four worlds that agree after an even token and split two against two after an odd one."""

    num_worlds, vocab_size, context_length = 4, 4, 12

    def open(self, prompt):
        return Context(prompt)

    def extend(self, contexts, tokens, guesses=None):
        for context, token in zip(contexts, tokens, strict=True):
            context.tokens.append(token)

    def public_logits(self, context):
        return np.zeros(4, dtype=np.float32)

    def world_logits(self, context, candidates_K):
        favourite = [0, 0, 1, 1] if context.tokens[-1] % 2 else [1, 1, 1, 1]
        return 10.0 * (candidates_K == np.array(favourite)[:, None]).astype(np.float32)


def test_tokens_are_fed_back_and_only_dissent_informs():
    decoding = DecodingSettings(Decoder.GREEDY, step_budget=2.0**-10, num_candidates=4)
    settings = SessionSettings(num_queries=3, tokens_per_query=4, num_sessions=400, num_streams=1)
    outcomes = free_running_sessions(SplitEnsemble(), [[1], [3]], decoding, settings)
    # From an odd prompt: a split, then a split again after token 1 and agreement on 1 after token 0.
    assert 0.5 < outcomes.dissent_R.mean() < 1.0
    assert np.bincount(outcomes.secrets_R, minlength=4).min() > 60
    nats_R = refinement_nats(outcomes.log_weights_RM)
    expected = outcomes.dissent_R.mean() * outcomes.charge_nats
    assert nats_R.mean() == pytest.approx(expected, abs=5 * nats_R.std() / 20)
    # Worlds 0 and 1 always vote alike, so they stay alike; the pairs do not.
    np.testing.assert_allclose(outcomes.log_weights_RM[:, 0], outcomes.log_weights_RM[:, 1])
    assert (outcomes.log_weights_RM[:, 0] != outcomes.log_weights_RM[:, 2]).all()


@pytest.mark.parametrize(("prompts", "word"), [([], "at least one"), ([[1] * 9], "room")])
def test_prompts_must_leave_room(prompts, word):
    decoding = DecodingSettings(Decoder.GREEDY, step_budget=0.1, num_candidates=4)
    settings = SessionSettings(num_queries=1, tokens_per_query=4, num_sessions=1, num_streams=1)
    with pytest.raises(InvalidValueError, match=word):
        free_running_sessions(SplitEnsemble(), prompts, decoding, settings)
