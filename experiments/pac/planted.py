"""A run with canaries planted in its corpus, and the votes that the canary and secrets studies share."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from experiments.pac.common import Experiment
from experiments.pac.settings import Size
from experiments.studies.canary import CanaryTexts, canary_texts
from reticent.auditing.canaries.planting import Canary, CanaryKind, draw_canaries
from reticent.evaluation.vote_casting import VoteSettings, votes_of_text
from reticent.evaluation.vote_tensor import VoteTensor, concatenate_votes
from reticent.randomness import PublicCoins
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.assignment import Assignment
from reticent.worlds.run_directory import RunDirectory


@dataclass(frozen=True)
class PlantedSizes:
    """Sizes of the planted study: canaries, texts and training.

    Attributes:
        corpus: records beside the canaries.
        num_canaries: planted; as many twins are held out.
        repetitions: copies of each, one privacy unit.
        num_worlds: m. num_shards: N, disjoint shards for PMixED.
        epochs, learning_rate, max_tokens: hard enough that worlds learn a canary by heart.
        num_prompts: answers asked for each canary, each with other coins.
        num_deployments: secrets and noise draws for each.
    """

    corpus: int
    num_canaries: int
    repetitions: int
    num_worlds: int
    num_shards: int
    epochs: int
    learning_rate: float
    max_tokens: int
    num_prompts: int
    num_deployments: int


SIZES: Mapping[Size, PlantedSizes] = {
    Size.SMOKE: PlantedSizes(8, 2, 6, 4, 2, 2, 2e-2, 40, 1, 16),
    Size.LOCAL: PlantedSizes(64, 4, 16, 16, 8, 6, 2e-3, 64, 4, 256),
    Size.PAPER: PlantedSizes(2048, 16, 64, 128, 8, 6, 2e-3, 512, 8, 1024),
}


@dataclass(frozen=True)
class Planted:
    """The planted corpus of one experiment, and what is made of it."""

    experiment: Experiment

    @property
    def sizes(self) -> PlantedSizes:
        """Of the experiment's size."""
        return SIZES[self.experiment.settings.size]

    @property
    def lora(self) -> LoraSettings:
        """Adapters, as in the experiment's own settings."""
        return self.experiment.settings.lora

    @cached_property
    def training(self) -> TrainingSettings:
        """Training that forces memorisation."""
        sizes = self.sizes
        return self.experiment.settings.training.model_copy(
            update={
                "epochs": sizes.epochs,
                "learning_rate": sizes.learning_rate,
                "max_tokens": sizes.max_tokens,
            }
        )

    @property
    def votes(self) -> VoteSettings:
        """Cast the votes, without what only stability and fidelity need."""
        longest = self.sizes.max_tokens
        return self.experiment.settings.votes.model_copy(update={"mass_every": longest, "logits_every": longest})

    @cached_property
    def canaries(self) -> tuple[Canary, ...]:
        """Planted canaries and their held-out twins."""
        seed = self.experiment.settings.seed
        return draw_canaries(CanaryKind.DIGITS, self.sizes.num_canaries, [self.sizes.repetitions], seed)

    @cached_property
    def records(self) -> list[str]:
        """The records beside the canaries."""
        return list(self.experiment.texts.corpus[: self.sizes.corpus])

    @cached_property
    def corpus(self) -> list[str]:
        """Records and copies of planted canaries, in random order."""
        copies = [canary.text for canary in self.canaries if canary.member for _ in range(canary.repetitions)]
        together = self.records + copies
        order = np.random.default_rng([self.experiment.settings.seed, 1]).permutation(len(together))
        return [together[place] for place in order]

    @cached_property
    def run(self) -> RunDirectory:
        """Overlapping worlds."""
        return self.experiment.build("planted", self.corpus, self.sizes.num_worlds, self.lora, self.training)

    @cached_property
    def shards(self) -> RunDirectory:
        """Disjoint shards, each trained for about as many steps as a world is."""
        epochs = max(1, self.training.epochs * self.sizes.num_shards // 2)
        training = self.training.model_copy(update={"epochs": epochs})
        return self.experiment.build(
            "planted-shards", self.corpus, self.sizes.num_shards, self.lora, training, Assignment.DISJOINT
        )

    @cached_property
    def canary_texts(self) -> CanaryTexts:
        """All canaries as token sequences, with the worlds that hold them."""
        membership = self.run.membership()
        row_of_hash = {bytes(row).hex(): place for place, row in enumerate(membership.record_hashes)}
        members_CM = np.stack(
            [
                membership.record_members[row_of_hash[canary.hash]]
                if canary.member
                else np.zeros(self.sizes.num_worlds, dtype=np.bool_)
                for canary in self.canaries
            ]
        )
        return canary_texts(self.experiment.tokenizer, self.canaries, members_CM, self.sizes.num_prompts)

    @cached_property
    def canary_votes(self) -> VoteTensor:
        """The worlds' votes along the canaries."""
        forcing = self.experiment.forcing(self.run)
        seed = self.votes.coin_seed
        return concatenate_votes(
            [
                votes_of_text(forcing, tokens, PublicCoins.from_seed(seed, text), self.votes)
                for text, tokens in enumerate(self.canary_texts.tokens)
            ]
        )
