"""The sizes of every experiment.

| size | model and texts | for |
|---|---|---|
| smoke | a tiny random model, invented letters | seeing in seconds that every script runs; its numbers say nothing |
| local | SmolLM2-135M; Wikipedia articles or NIH abstracts from `--data` | the results here, an hour on two cores |
| reproduction | SmolLM2-135M; 700 Wikipedia articles, also in WikiText-103's form | a run to match the paper |
| paper | GPT-2-small and WikiText-103, from the hub | the published setting; wants an accelerator |

Everything a result depends on is here or in the operating point, and goes into the result's file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from reticent.benchmark.settings import DataSetChoice
from reticent.evaluation.utility import BUDGETS
from reticent.evaluation.vote_casting import VoteSettings
from reticent.training.settings import LoraSettings, TrainingSettings

TINY = "tiny"
"""Stands for the tiny random model where a model is named."""
LETTERS, WIKITEXT = "clinic-letters", "wikitext-103"
"""Makers of texts, in `sources`."""


class Size(StrEnum):
    """The amount of computation."""

    SMOKE = "smoke"
    LOCAL = "local"
    REPRODUCTION = "reproduction"
    PAPER = "paper"


class Domain(StrEnum):
    """The subject of the private texts."""

    WIKIPEDIA = "wikipedia"
    WIKITEXT_FORM = "wikitext-form"
    """The articles of `WIKIPEDIA` in the surface form of WikiText-103."""
    NIH = "nih"


@dataclass(frozen=True)
class TextCounts:
    """The number of texts in each part; no text nearly repeats another, of whatever part."""

    corpus: int
    validation: int
    test: int
    spare: int


@dataclass(frozen=True)
class SessionSizes:
    """Deployments of composition and leakage: R sessions, each of a number of queries of equal length."""

    num_sessions: int = 1024
    num_queries: int = 64
    tokens_per_query: int = 64
    num_streams: int = 8


@dataclass(frozen=True)
class SweepSizes:
    """One factor at a time around a centre.

    Attributes:
        num_worlds, corpus, max_tokens, validation: of the centre.
        learning_rates, epochs, ranks, corpora, worlds, layers: the other values of each factor.
    """

    num_worlds: int = 16
    corpus: int = 256
    max_tokens: int = 96
    validation: int = 48
    learning_rates: tuple[float, ...] = (2e-4, 1e-3, 2e-3, 4e-3, 8e-3)
    epochs: tuple[int, ...] = (2,)
    ranks: tuple[int, ...] = (2, 32)
    corpora: tuple[int, ...] = (128, 512)
    worlds: tuple[int, ...] = (8, 32)
    layers: tuple[int, ...] = (4, 24)


@dataclass(frozen=True)
class MatchedSizes:
    """The comparison with PMixED.

    Attributes:
        shards: N, the numbers of shards tried.
        sampling_rates, max_orders: q and α tried.
        horizons: T.
        selection_positions, test_positions: positions of held-out and of test texts; each costs every expert's
            projection, some milliseconds.
        order_positions: positions at which the ball at one order is compared with the ball at all orders.
        num_draws: coins and noise draws behind PAC's accuracy at a position.
        largest_shard_epochs: an expert trains for as many steps as a world does, but passes no more often over a shard.
    """

    shards: tuple[int, ...] = (8, 16, 32)
    sampling_rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    max_orders: tuple[int, ...] = (2, 8)
    horizons: tuple[int, ...] = (10**2, 10**3, 10**4, 10**5, 10**6)
    selection_positions: int = 48
    test_positions: int = 128
    order_positions: int = 8
    num_draws: int = 256
    largest_shard_epochs: int = 8


@dataclass(frozen=True)
class Settings:
    """One size.

    Attributes:
        size: its name.
        model: the public base, as `resolve_base_model` takes it, or `TINY`.
        sources: the private texts of each domain.
        counts: how many texts.
        num_records: of the corpus part, which the shared run and the shards are trained on; the sweep tries others too.
        num_worlds: m.
        lora, training: of every adapter, before the operating point changes them; `training.max_tokens` also cuts test
            texts.
        votes: how votes are cast.
        budgets: b in nats a token.
        num_draws: secrets and noise draws behind each accuracy.
        sessions, sweep, matched: of those experiments.
        decode_tokens: decode steps that are timed.
    """

    size: Size
    model: str
    sources: Mapping[Domain, DataSetChoice]
    counts: TextCounts
    num_records: int
    num_worlds: int
    lora: LoraSettings
    training: TrainingSettings
    votes: VoteSettings = field(default_factory=VoteSettings)
    budgets: tuple[float, ...] = BUDGETS
    num_draws: int = 64
    sessions: SessionSizes = field(default_factory=SessionSizes)
    sweep: SweepSizes = field(default_factory=SweepSizes)
    matched: MatchedSizes = field(default_factory=MatchedSizes)
    decode_tokens: int = 16
    seed: int = 0


_NIH = DataSetChoice(
    name="nih-abstracts", domain="research-grant abstracts", path="nih_abstracts.jsonl.gz", min_characters=400
)
_WIKIPEDIA = DataSetChoice(
    name="wikipedia", domain="encyclopaedia articles", path="wikipedia.jsonl.gz", min_characters=400
)
_LETTERS = DataSetChoice(name="letters", domain="invented clinic letters", made=LETTERS)
_WIKITEXT = DataSetChoice(name="wikitext-103", domain="encyclopaedia articles", made=WIKITEXT, min_characters=2000)

SMOKE = Settings(
    size=Size.SMOKE,
    model=TINY,
    sources=dict.fromkeys(Domain, _LETTERS),
    counts=TextCounts(corpus=16, validation=4, test=6, spare=6),
    num_records=16,
    num_worlds=8,
    lora=LoraSettings(rank=4, alpha=8.0, target_modules=("all-linear",)),
    training=TrainingSettings(learning_rate=3e-2, epochs=4, max_tokens=40, worlds_at_once=8),
    votes=VoteSettings(
        num_candidates=200, temperature=0.1, candidate_counts=(20, 50), mass_every=8, logits_every=8
    ),
    budgets=(2.0**-4, 2.0**-32),
    num_draws=8,
    sessions=SessionSizes(num_sessions=32, num_queries=4, tokens_per_query=16, num_streams=2),
    sweep=SweepSizes(
        num_worlds=4, corpus=12, max_tokens=24, validation=4, learning_rates=(3e-3,), epochs=(2,), ranks=(1,),
        corpora=(8,), worlds=(2,), layers=(1,),
    ),
    matched=MatchedSizes(
        shards=(2, 4), sampling_rates=(0.5, 1.0), max_orders=(2, 4), horizons=(10**2, 10**6), selection_positions=4,
        test_positions=8, order_positions=2, num_draws=16, largest_shard_epochs=4,
    ),
    decode_tokens=3,
)  # fmt: skip

LOCAL = Settings(
    size=Size.LOCAL,
    model="smollm2-135m",
    sources={Domain.WIKIPEDIA: _WIKIPEDIA, Domain.WIKITEXT_FORM: _WIKIPEDIA, Domain.NIH: _NIH},
    counts=TextCounts(corpus=512, validation=64, test=64, spare=64),
    num_records=256,
    num_worlds=128,
    lora=LoraSettings(rank=8, alpha=16.0, num_top_layers=12),
    training=TrainingSettings(learning_rate=5e-4, max_tokens=96, dtype="bfloat16", worlds_at_once=4),
)

REPRODUCTION = replace(
    LOCAL,
    size=Size.REPRODUCTION,
    sources={Domain.WIKIPEDIA: _WIKIPEDIA, Domain.WIKITEXT_FORM: _WIKIPEDIA},
    counts=TextCounts(corpus=700, validation=64, test=128, spare=0),
    num_records=700,
    training=TrainingSettings(
        learning_rate=2e-3, epochs=1, batch_size=16, max_tokens=192, dtype="bfloat16", worlds_at_once=4
    ),
)

PAPER = Settings(
    size=Size.PAPER,
    model="openai-community/gpt2",
    sources={Domain.WIKIPEDIA: _WIKITEXT, Domain.NIH: _NIH.model_copy(update={"min_characters": 1})},
    counts=TextCounts(corpus=2048, validation=128, test=128, spare=128),
    num_records=2048,
    num_worlds=128,
    lora=LoraSettings(rank=8, alpha=16.0),
    training=TrainingSettings(learning_rate=3e-4, max_tokens=512, dtype="bfloat16", worlds_at_once=4),
    matched=MatchedSizes(selection_positions=256, test_positions=1024, order_positions=64),
)

SETTINGS: Mapping[Size, Settings] = {settings.size: settings for settings in (SMOKE, LOCAL, REPRODUCTION, PAPER)}
