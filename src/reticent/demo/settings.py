"""Settings of the demonstration and the files it makes, each fixed once so that a later call finds them again."""

from dataclasses import dataclass, replace
from pathlib import Path

from reticent.api.runs import DEFAULT_MODEL, BuildOptions

STEP_BUDGET = 2.0**-32
"""The charge for one token, in nats."""
PLANNED_TOKENS = 1_000_000
"""Tokens that the deployment may release over its life, which its cap pays for."""
MAX_TOKENS = 96
"""The most tokens of a letter; none is cut."""

PROMPT = "Dear Dr King,\n\nMrs Ada Quill, born 1948, came to the heart clinic with"
"""The beginning of a letter, by hand."""
_LEAST_PART = 4

TRAINING = BuildOptions(
    epochs=1, batch_size=4, learning_rate=8e-3, max_tokens=MAX_TOKENS, rank=8, adapt_layers="top:8", dtype="bfloat16"
)
"""Settings of the worlds' training, chosen on held-out letters: worlds learn the house style and agree on it."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Settings of one demonstration.

    Attributes:
        letters: how many letters to invent as the private corpus.
        planted: how many of them are one patient's note with the planted secret.
        held_out: how many letters about other patients nobody trains on.
        worlds: m, even.
        prompt: the beginning of a letter that each writer finishes.
        max_tokens: the most tokens of each answer.
        attempts: how often the deployment is asked for the secret, with each release mechanism.
        seed: of the letters and of every simulation.
        model: the base.
        training: of the worlds.
    """

    letters: int = 300
    planted: int = 40
    held_out: int = 48
    worlds: int = 16
    prompt: str = PROMPT
    max_tokens: int = 64
    attempts: int = 3
    seed: int = 7
    model: str = DEFAULT_MODEL
    training: BuildOptions = TRAINING

    def with_letters(self, letters: int) -> "DemoSettings":
        """The same demonstration with another number of letters, as many of them planted and held out in proportion."""
        planted, held_out = (max(_LEAST_PART, letters * part // self.letters) for part in (self.planted, self.held_out))
        return replace(self, letters=letters, planted=planted, held_out=held_out)


@dataclass(frozen=True)
class DemoFolder:
    """The folder of a demonstration and its files by name."""

    root: Path

    @property
    def letters(self) -> Path:
        """The private corpus."""
        return self.root / "letters.jsonl"

    @property
    def truth(self) -> Path:
        """The corpus's ground truth."""
        return self.root / "ground-truth.jsonl"

    @property
    def held_out(self) -> Path:
        """Letters about other patients."""
        return self.root / "held_out.jsonl"

    @property
    def held_out_truth(self) -> Path:
        """The ground truth of those."""
        return self.root / "held_out-truth.jsonl"

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.root / "run"

    @property
    def evaluation(self) -> Path:
        """Votes on the held-out letters, and what they show."""
        return self.root / "evaluation"

    @property
    def findings(self) -> Path:
        """The texts of the writers and the results of the attacks."""
        return self.root / "findings.json"

    @property
    def report(self) -> Path:
        """The report to open."""
        return self.root / "report.html"
