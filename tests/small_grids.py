"""A small grid, texts for it, and cells made without a model."""

import hashlib

from sample_audits import sample_attack, sample_audit

from reticent.benchmark.records import CellFacts
from reticent.benchmark.settings import parse_grid

TOML = """
name = "small"
members = 4
nonmembers = 3
max_tokens = 16
[[models]]
name = "a"
family = "llama"
tiny = true
[[models]]
name = "b"
family = "t5"
tiny = true
[[datasets]]
name = "notes"
domain = "notes"
path = "notes.jsonl"
[[techniques]]
technique = "lora"
[[techniques]]
technique = "full"
[attacks]
names = ["likelihood", "reference"]
"""


def small_grid(toml=TOML):
    return parse_grid(toml, "small")


def distinct_texts(count, words=12):
    """Texts that share no word, so that none resembles another."""
    return [" ".join(hashlib.sha256(f"{n}/{w}".encode()).hexdigest()[:8] for w in range(words)) for n in range(count)]


class RecordingProgress:
    def __init__(self):
        self.begun, self.ended = [], []

    def note(self, line): ...
    def begin(self, what, num_tokens): ...
    def advance(self, num_tokens): ...

    def begin_cell(self, name, number, total):
        self.begun.append((name, number, total))

    def end_cell(self, record, reused):
        self.ended.append((record.name, str(record.state), reused))


def facts(**changes):
    fields = {"num_parameters": 1000, "num_trained": 50, "num_members": 4, "num_nonmembers": 3, "mean_tokens": 40.0}
    return CellFacts(**{**fields, "epochs": 2, **changes})


def fake_cell(auc=0.6, **changes):
    attacks = (sample_attack("likelihood", "Likelihood", auc), sample_attack("reference", "Reference", auc + 0.1))
    return sample_audit(attacks=attacks, warnings=(), target={"name": "fake"}), facts(**changes)
