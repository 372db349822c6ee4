"""Quality of free-running text: repetition, diversity and perplexity of every way to choose tokens, beside human text.

Prompts are the beginnings of held-out texts; each is continued by as many tokens as the human text gives. Perplexity is
under one fixed model, the public base: it tells how far from the base's own taste a text is, and rewards repetition, so
it is to be read beside the repetition rate and beside the human text's.

A divergence of distributions such as MAUVE (arXiv 2102.01454) is left out: its library brings a search index and wants
thousands of texts a set, and with some dozens the estimate is mostly bias.

| method | what chooses |
|---|---|
| `human` | the held-out text itself |
| `public-greedy` | the public model's most likely token |
| `public`, `full-data` | one model's vote, with the decoder of all others |
| `noiseless` | the vote of one world, drawn for each text: also the distribution of the request-world control |
| `plurality`, `fresh-world` | the controls |
| a release mechanism | calibrated release, with separate S, posterior and noise for each text |
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np
from torch import nn

from experiments.studies.free_text import (
    ByControl,
    ByCurator,
    Chooser,
    FixedWorld,
    FreeTexts,
    LogitEngine,
    PublicAsWorld,
    free_texts,
)
from experiments.studies.reference_model import token_log_probabilities
from experiments.studies.text_quality import distinct, repetition
from reticent import _validate
from reticent._settings import FiniteModel
from reticent.decoding.engines import C
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control
from reticent.pac.mechanism import ReleaseMechanism
from reticent.randomness import SeededNoise
from reticent.stats.means import Mean, ratio, sample_mean

REPETITION_N = 3
DISTINCT_N = (1, 2, 3)


@dataclass(frozen=True)
class QualitySettings:
    """Settings of the generated texts.

    Attributes:
        prompt_tokens: how many tokens of each held-out text are given.
        num_tokens: T, how many are generated.
        decoding: decoder, temperature and candidates; its budget and mechanism are replaced.
        mechanisms, budgets: every mechanism at every budget, b in nats.
        seed: of coins, secrets and noise.
        texts_at_once: how many texts are in memory together.
    """

    prompt_tokens: int = 32
    num_tokens: int = 256
    decoding: DecodingSettings = field(default_factory=lambda: DecodingSettings(Decoder.GUMBEL, 1.0))
    mechanisms: Sequence[ReleaseMechanism] = tuple(ReleaseMechanism)
    budgets: Sequence[float] = (2.0**-8, 2.0**-20, 2.0**-32)
    seed: int = 0
    texts_at_once: int = 8

    def __post_init__(self) -> None:
        _validate.integer_in_range("prompt_tokens", self.prompt_tokens, 1)
        _validate.integer_in_range("num_tokens", self.num_tokens, REPETITION_N)
        _validate.integer_in_range("seed", self.seed, 0)
        for budget in self.budgets:
            _validate.positive_finite("budget", budget)


class QualityRow(FiniteModel):
    """One way to choose tokens.

    Attributes:
        repetition: rep-3, mean over texts.
        distinct: distinct-1, -2 and -3 of all texts together.
        reference_nats: mean surprise of the reference model, nats a token.
        perplexity: exp of it.
        dissent: share of steps on which worlds differed; None where there is one voter.
    """

    method: str
    step_budget: float | None = None
    repetition: Mean
    distinct: tuple[Mean, Mean, Mean]
    reference_nats: Mean
    perplexity: float
    dissent: Mean | None = None


class Quality(FiniteModel):
    """Quality of all methods on the same prompts; standard errors are over texts."""

    rows: tuple[QualityRow, ...]
    decoder: Decoder
    num_texts: int
    prompt_tokens: int
    num_tokens: int
    num_worlds: int

    def row(self, method: str, step_budget: float | None = None) -> QualityRow:
        """The row of a method, at a budget for a release mechanism."""
        return next(row for row in self.rows if (row.method, row.step_budget) == (method, step_budget))


@dataclass(frozen=True)
class QualityModels(Generic[C]):
    """Models that generate and judge.

    Attributes:
        worlds: the public model and m worlds.
        full: the public model and, as its only world, the full-data adapter; or None.
        reference: the model of the perplexity; its name belongs beside the result.
    """

    worlds: LogitEngine[C]
    full: LogitEngine[C] | None
    reference: nn.Module


def measure_quality(
    models: QualityModels[C],
    texts: Sequence[Sequence[int]],
    settings: QualitySettings,
    note: Callable[[str], None] = lambda line: None,
) -> Quality:
    """Continue the beginning of each text in every way, and measure the continuations.

    Args:
        models: what generates and judges.
        texts: token ids of held-out texts.
        settings: what is generated.
        note: called with a description of what is generated next.

    Raises:
        InvalidValueError: a text is shorter than prompt and continuation together, or there is none.
    """
    length = settings.prompt_tokens + settings.num_tokens
    if not texts or min(map(len, texts)) < length:
        raise InvalidValueError(
            f"every text must have {length} tokens, {settings.prompt_tokens} of prompt and {settings.num_tokens} to "
            "compare; give longer texts, or generate fewer tokens"
        )
    study = _QualityStudy(models, [list(text[: settings.prompt_tokens]) for text in texts], settings, note)
    human = [list(text[settings.prompt_tokens : length]) for text in texts]
    return Quality(
        rows=(study.measure("human", None, FreeTexts(human, [])), *study.generate()),
        decoder=settings.decoding.decoder,
        num_texts=len(texts),
        prompt_tokens=settings.prompt_tokens,
        num_tokens=settings.num_tokens,
        num_worlds=models.worlds.num_worlds,
    )


class _QualityStudy(Generic[C]):
    def __init__(
        self,
        models: QualityModels[C],
        prompts: list[list[int]],
        settings: QualitySettings,
        note: Callable[[str], None],
    ) -> None:
        self._models, self._prompts, self._settings, self._note = models, prompts, settings, note

    def generate(self) -> list[QualityRow]:
        models, settings, texts = self._models, self._settings, range(len(self._prompts))
        public: LogitEngine[C] = PublicAsWorld(models.worlds)
        sampled = settings.decoding
        greedy = DecodingSettings(Decoder.GREEDY, sampled.step_budget, num_candidates=1)
        alone = [FixedWorld() for _ in texts]
        rows = [self._row("public-greedy", None, public, greedy, alone)]
        rows.append(self._row("public", None, public, sampled, alone))
        if models.full is not None:
            rows.append(self._row("full-data", None, models.full, sampled, alone))
        secrets = np.random.default_rng([settings.seed, 1]).integers(models.worlds.num_worlds, size=len(texts))
        rows.append(self._row("noiseless", None, models.worlds, sampled, [FixedWorld(int(world)) for world in secrets]))
        for control in (Control.PLURALITY, Control.FRESH_WORLD):
            choosers = [ByControl(control, np.random.default_rng([settings.seed, 2, text])) for text in texts]
            rows.append(self._row(control.value, None, models.worlds, sampled, choosers))
        for mechanism in settings.mechanisms:
            for budget in sorted(settings.budgets, reverse=True):
                decoding = replace(sampled, step_budget=budget, release_mechanism=mechanism)
                curators = [ByCurator(decoding, models.worlds.num_worlds, self._noise(text)) for text in texts]
                rows.append(self._row(mechanism.value, budget, models.worlds, decoding, curators))
        return rows

    def measure(self, method: str, budget: float | None, texts: FreeTexts) -> QualityRow:
        surprise = [
            -token_log_probabilities(self._models.reference, prompt + tokens)[len(prompt) - 1 :].sum()
            for prompt, tokens in zip(self._prompts, texts.tokens, strict=True)
        ]
        lengths = np.array([len(tokens) for tokens in texts.tokens], dtype=np.float64)
        nats = ratio(np.array(surprise), lengths)
        one, two, three = (distinct(texts.tokens, n) for n in DISTINCT_N)
        return QualityRow(
            method=method,
            step_budget=budget,
            repetition=repetition(texts.tokens, REPETITION_N),
            distinct=(one, two, three),
            reference_nats=nats,
            perplexity=math.exp(nats.value),
            dissent=sample_mean(texts.dissent) if texts.dissent else None,
        )

    def _row(
        self,
        method: str,
        budget: float | None,
        engine: LogitEngine[Any],
        decoding: DecodingSettings,
        choosers: Sequence[Chooser],
    ) -> QualityRow:
        settings = self._settings
        self._note(f"generating: {method}" + ("" if budget is None else f" at 2^{math.log2(budget):g} nats"))
        texts = free_texts(
            engine,
            self._prompts,
            settings.num_tokens,
            decoding,
            choosers,
            settings.seed,
            settings.texts_at_once,
        )
        if engine.num_worlds == 1:
            texts = FreeTexts(texts.tokens, [])
        return self.measure(method, budget, texts)

    def _noise(self, text: int) -> SeededNoise:
        """The same for every mechanism and budget, so that they differ in nothing else."""
        return SeededNoise(int(np.random.default_rng([self._settings.seed, 3, text]).integers(2**62)))
