"""A scorer without a model, and targets around it, so that a whole audit takes milliseconds."""

import hashlib

import numpy as np

from reticent.auditing.targets.targets import Target, TargetKind
from reticent.protocols import TokenSignals
from reticent.text.corpus import text_hash
from reticent.text.template import TextTemplate


class WordScorer:
    """One token a word. A text's log-probabilities are a function of its hash, higher by `gain` for known texts."""

    is_white_box = False

    def __init__(self, name="target", known=(), gain=0.0):
        self.fingerprint = hashlib.sha256(name.encode()).hexdigest()
        self.known, self.gain = frozenset(map(text_hash, known)), gain
        self.asked = []
        self.dies_after = None

    def score(self, texts):
        if self.dies_after is not None and len(self.asked) >= self.dies_after:
            raise KeyboardInterrupt
        self.asked += texts
        return [self.signals(text) for text in texts]

    def signals(self, text):
        num_tokens = len(text.split()) - 1
        if num_tokens < 1:
            return None
        seed = int.from_bytes(hashlib.sha256((self.fingerprint + text).encode()).digest()[:8], "little")
        logp = -np.random.default_rng(seed).exponential(2.0, num_tokens) + self.gain * (text_hash(text) in self.known)
        mu = np.full(num_tokens, -3.0)
        rank = (logp < -2.0).astype(np.int64)
        return TokenSignals(np.minimum(logp, 0.0), mu, np.ones(num_tokens), -mu, rank)


def fake_target(scorer, reference=None, **fields):
    record = {"kind": "fake", "name": "a fake"}
    return Target(TargetKind.MODEL, record, scorer, TextTemplate(), reference, {"name": "base"}, **fields)


class Notes:
    """Progress that remembers what was said, and when work began."""

    def __init__(self):
        self.events = []

    def note(self, line):
        self.events.append(("note", line))

    def begin(self, what, num_tokens):
        self.events.append(("begin", what))

    def advance(self, num_tokens):
        pass


def random_texts(count, seed, words=12):
    """Texts of random words that are no near-duplicates of one another."""
    generator = np.random.default_rng(seed)
    return [
        " ".join("".join(chr(97 + c) for c in generator.integers(0, 26, 5)) for _ in range(words)) for _ in range(count)
    ]
