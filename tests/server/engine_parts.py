"""An ensemble of arithmetic and what a batcher needs beside it, made for tests that count steps."""

import threading

import numpy as np
from logit_engines import LogitVotes
from pac_oracles import MemoryStore

from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.pac.accounting import cap_units
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.posterior import Posterior
from reticent.randomness import PublicCoins, SeededNoise
from reticent.server.jobs import Job

WORLDS, VOCABULARY, WINDOW = 4, 16, 4096
NATS = 2.0**-32
SETTINGS = DecodingSettings(Decoder.GUMBEL, NATS, num_candidates=8)


class Tokens:
    def __init__(self, prompt):
        self.tokens = list(prompt)

    @property
    def length(self):
        return len(self.tokens)


class Arithmetic(LogitVotes):
    """Logits by a formula of the context, a prompt read token by token; what was done with it is written down."""

    num_worlds, vocab_size, context_length = WORLDS, VOCABULARY, WINDOW

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self.poisoned = set()
        self.parts, self.at_part = 0, {}

    def open(self, prompt):
        return Tokens(prompt)

    def prefill_in_chunks(self, prompt):
        self.gate.wait(20)
        for _ in prompt:
            self.parts += 1
            self.at_part.get(self.parts, lambda: None)()
            yield
        return self.open(prompt)

    def extend(self, contexts, tokens, drafts=None):
        self.batches.append(len(contexts))
        for context, token in zip(contexts, tokens, strict=True):
            context.tokens.append(token)

    def public_logits(self, context):
        if context.tokens[0] in self.poisoned:
            return np.full(VOCABULARY, np.nan, np.float32)
        return np.cos(np.arange(VOCABULARY) * (context.length % 7 + 1)).astype(np.float32)

    def world_logits(self, context, candidates_K):
        shift = 0.5 * np.arange(WORLDS)[:, None]
        return np.cos(candidates_K * (context.length % 7 + 1) + shift).astype(np.float32)


class Recorder:
    """A sink, an allowance and an observer that remember."""

    def __init__(self, total=None, wants=10**9):
        self.tokens, self.sources, self.ending = [], [], None
        self.done = threading.Event()
        self.left = total
        self.wants = wants
        self.seconds, self.steps = [], []
        self.shown_units = self.charged_units = 0

    def push(self, written, is_stop_token):
        self.tokens.append(written.token)
        self.sources.append(written.source)
        self.shown_units += written.reserve_units
        return len(self.tokens) < self.wants

    def end(self, ending):
        assert self.ending is None, "an answer ends once"
        self.ending = ending
        self.done.set()

    def take(self):
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0

    def put_back(self):
        if self.left is not None:
            self.left += 1

    def charge(self, units):
        self.charged_units += units

    def count_prefill(self, seconds):
        pass

    def count_step(self, seconds, step):
        self.seconds.append(seconds)
        self.steps.append(step)


def make_curator(secret=0, tokens=None, store=None):
    cap = None if tokens is None else cap_units(tokens * NATS)
    state = CuratorState(secret, Posterior.uniform(WORLDS).log_weights, cap_units=cap)
    return Curator.for_experiments(state, store or MemoryStore(), SeededNoise(1))


def make_job(key="k", max_tokens=5, prompt=(1, 2), sink=None, seed=0, **fields):
    sink = sink or Recorder()
    coins = PublicCoins.from_seed(seed, 0)
    return Job("r", key, list(prompt), SETTINGS, coins, max_tokens, frozenset(), sink, sink, **fields)


class ActingAt(Recorder):
    """Does something, on the engine's thread, when the answer has so many tokens."""

    def __init__(self, actions):
        super().__init__()
        self.actions = actions

    def push(self, written, is_stop_token):
        wants_more = super().push(written, is_stop_token)
        self.actions.get(len(self.tokens), lambda: None)()
        return wants_more


def finish(jobs):
    for job in jobs:
        assert job.sink.done.wait(30)
    return [job.sink for job in jobs]
