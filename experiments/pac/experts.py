"""PMixED's experts: one adapter a disjoint shard of the same corpus, and what each says at some positions of texts.

An expert trains for as many steps as a world of the shared run does, as far as `largest_shard_epochs` lets it pass over
its small shard. Distributions are over the whole vocabulary in float64, made from final hidden states one position at a
time; only the states of one text are held.

Shape suffixes: N experts, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.pac.common import Experiment
from experiments.studies.matched import TargetProbabilities
from reticent.engine.teacher_forced import TeacherForcing
from reticent.training.settings import TrainingSettings
from reticent.worlds.assignment import Assignment
from reticent.worlds.run_directory import RunDirectory


@dataclass(frozen=True)
class Place:
    """A text by its number, and a position in it; the token after that position is predicted."""

    text: int
    position: int


@dataclass(frozen=True)
class Opinions:
    """All models' distributions at one place.

    Attributes:
        place: where.
        target: the text's own next token.
        public_V, full_V: the public model's distribution, and that of the adapter on all records.
        experts: by number of shards, the experts' distributions, float64[N, V].
    """

    place: Place
    target: int
    public_V: NDArray[np.float64]
    full_V: NDArray[np.float64]
    experts: dict[int, NDArray[np.float64]]

    def at_target(self) -> "AtTarget":
        """The probabilities of the text's own next token alone."""
        return AtTarget(
            text=self.place.text,
            public=float(self.public_V[self.target]),
            full=float(self.full_V[self.target]),
            experts={count: experts_NV[:, self.target] for count, experts_NV in self.experts.items()},
        )


@dataclass(frozen=True)
class AtTarget:
    """All models' probabilities of the text's next token at one place; `experts` by number of shards, float64[N]."""

    text: int
    public: float
    full: float
    experts: dict[int, NDArray[np.float64]]


def target_probabilities(found: Sequence[AtTarget], num_shards: int) -> TargetProbabilities:
    """The probabilities of the public model and of the experts of one number of shards, place by place."""
    return TargetProbabilities(
        text_P=np.array([one.text for one in found]),
        public_P=np.array([one.public for one in found]),
        experts_PN=np.stack([one.experts[num_shards] for one in found]),
    )


def shard_training(experiment: Experiment, num_shards: int) -> TrainingSettings:
    """The shared run's training, with as many passes over a shard as make up for its size."""
    training = experiment.training
    epochs = min(training.epochs * num_shards // 2, experiment.settings.matched.largest_shard_epochs)
    return training.model_copy(update={"epochs": max(epochs, training.epochs)})


def shards(experiment: Experiment, num_shards: int) -> RunDirectory:
    """The run with one adapter a disjoint shard."""
    return experiment.build(
        f"shards-{num_shards}",
        experiment.records,
        num_shards,
        experiment.lora,
        shard_training(experiment, num_shards),
        Assignment.DISJOINT,
    )


def opinions(experiment: Experiment, texts: Sequence[str], places: Sequence[Place]) -> Iterator[Opinions]:
    """Compute all models' distributions at some places, text by text.

    Args:
        experiment: the setting.
        texts: what `Place.text` counts in.
        places: in order of texts.
    """
    forcings = {
        count: TeacherForcing(experiment.decoder, shards(experiment, count).worlds())
        for count in experiment.settings.matched.shards
    }
    on_everything = TeacherForcing(experiment.decoder, experiment.run.full())
    tokens = experiment.tokens(texts)
    for text in dict.fromkeys(place.text for place in places):
        known = tokens[text][:-1]
        full = on_everything.final_states(known)
        experts = {count: forcing.final_states(known).worlds_MND for count, forcing in forcings.items()}
        for place in (place for place in places if place.text == text):
            yield Opinions(
                place=place,
                target=tokens[text][place.position + 1],
                public_V=_distribution(experiment, full.public_ND[place.position]),
                full_V=_distribution(experiment, full.worlds_MND[0, place.position]),
                experts={
                    count: _distribution(experiment, states_MND[:, place.position])
                    for count, states_MND in experts.items()
                },
            )


def spread_places(lengths: Sequence[int], every: int, count: int) -> list[Place]:
    """About `count` of the positions 0, s, 2 s, … of texts, spread evenly over all of them, in order.

    Args:
        lengths: tokens of each text; the last is predicted only.
        every: s.
        count: how many, at most.
    """
    available = [
        Place(text, position) for text, length in enumerate(lengths) for position in range(0, length - 1, every)
    ]
    chosen = np.unique(np.linspace(0, len(available) - 1, min(count, len(available))).round().astype(int))
    return [available[index] for index in chosen]


@torch.inference_mode()
def _distribution(experiment: Experiment, states: torch.Tensor) -> NDArray[np.float64]:
    """The distribution over the vocabulary that final states predict, float64[…, V]."""
    scores = experiment.decoder.logits(states).double() / experiment.settings.votes.temperature
    distribution: NDArray[np.float64] = scores.softmax(-1).cpu().numpy()
    return distribution
