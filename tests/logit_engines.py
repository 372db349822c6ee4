"""What engines made for tests share: votes from their own logits, prompts read at once, no drafts."""

import numpy as np

from reticent.decoding.logit_votes import aggregates_from_logits, public_votes_from_logits, votes_from_logits


class LogitVotes:
    """The part of the engine protocol that follows from `open`, `public_logits` and `world_logits`."""

    def prefill_in_chunks(self, prompt):
        yield from ()
        return self.open(prompt)

    def has_draft(self, context, token):
        return False

    def draft(self, contexts, tokens, requests, counts):
        return [[] for _ in contexts]

    def votes(self, contexts, requests):
        return votes_from_logits(self, contexts, requests)

    def public_votes(self, contexts, requests):
        return public_votes_from_logits(self, contexts, requests)

    def aggregates(self, contexts, settings):
        return aggregates_from_logits(self, contexts, settings, np.ones(self.num_worlds, np.bool_))
