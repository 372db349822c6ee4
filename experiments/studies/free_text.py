"""Texts that grow by their own tokens: several at once, under any way of choosing a token from the worlds' votes.

Every text is a separate deployment, with its own S, coins and noise, so that texts are independent. The number of
tokens is fixed: an end-of-text token is a token like others, since repetition depends on length. For experiments only:
S and noise are seeded.

Shape suffixes: M worlds, K candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

import numpy as np
from numpy.typing import NDArray

from reticent._validate import integer_in_range
from reticent.decoding.engines import C
from reticent.decoding.logit_votes import LogitSource, cast_votes
from reticent.decoding.votes import DecodingSettings
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control, control_tokens
from reticent.evaluation.discarding_store import DiscardingStore
from reticent.pac.curator import Curator, CuratorState
from reticent.randomness import PublicCoins, SeededNoise


class LogitEngine(LogitSource[C], Protocol[C]):
    """An engine that shows its logits."""

    @property
    def num_worlds(self) -> int:
        """The number of worlds that vote."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of token ids, V."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens a context can hold."""
        ...

    def open(self, prompt: Sequence[int]) -> C:
        """Read a prompt into a new context."""
        ...

    def extend(self, contexts: Sequence[C], tokens: Sequence[int]) -> None:
        """Append one token to each context."""
        ...


class Chooser(Protocol):
    """Turns the worlds' votes for one text's next token into that token."""

    def choose(self, votes_M: NDArray[np.int64], step: int) -> int:
        """The token released; `votes_M` is each world's vote, and steps come in order."""
        ...


@dataclass(frozen=True)
class FixedWorld:
    """The vote of one world throughout; of world 0 unless another is given."""

    world: int = 0

    def choose(self, votes_M: NDArray[np.int64], step: int) -> int:
        """See `Chooser.choose`."""
        return int(votes_M[self.world])


@dataclass(frozen=True)
class ByControl:
    """A control that draws anew at each token; a world kept for the whole text is `FixedWorld`."""

    control: Control
    generator: np.random.Generator

    def choose(self, votes_M: NDArray[np.int64], step: int) -> int:
        """See `Chooser.choose`."""
        return int(control_tokens(self.control, votes_M[None], self.generator)[0])


class ByCurator:
    """The calibrated release of a deployment that serves this text alone.

    Args:
        decoding: budget and release mechanism.
        num_worlds: m.
        noise: of S and of every release.
    """

    def __init__(self, decoding: DecodingSettings, num_worlds: int, noise: SeededNoise) -> None:
        self._decoding = decoding
        self._curator = Curator.for_experiments(CuratorState.initial(num_worlds, noise), DiscardingStore(), noise)

    def choose(self, votes_M: NDArray[np.int64], step: int) -> int:
        """See `Chooser.choose`."""
        decoding = self._decoding
        return self._curator.release(
            votes_M, decoding.charging, request="text", step=step, release_mechanism=decoding.release_mechanism
        ).token


@dataclass(frozen=True)
class PublicAsWorld(Generic[C]):
    """An engine whose one world is the public model itself."""

    engine: LogitEngine[C]

    @property
    def num_worlds(self) -> int:
        """1."""
        return 1

    @property
    def vocab_size(self) -> int:
        """The number of token ids, V."""
        return self.engine.vocab_size

    @property
    def context_length(self) -> int:
        """The most tokens a context can hold."""
        return self.engine.context_length

    def open(self, prompt: Sequence[int]) -> C:
        """Read a prompt into a new context."""
        return self.engine.open(prompt)

    def extend(self, contexts: Sequence[C], tokens: Sequence[int]) -> None:
        """Append one token to each context."""
        self.engine.extend(contexts, tokens)

    def public_logits(self, context: C) -> NDArray[np.float32]:
        """The public model's next-token logits, float32[V]."""
        return self.engine.public_logits(context)

    def world_logits(self, context: C, candidates_K: NDArray[np.int64]) -> NDArray[np.float32]:
        """The public model's logits at the candidates, float32[1, K]."""
        return self.engine.public_logits(context)[None, candidates_K]


@dataclass(frozen=True)
class FreeTexts:
    """Generated continuations.

    Attributes:
        tokens: one list for each prompt, the prompt left out.
        dissent: for each, the share of steps on which worlds differed.
    """

    tokens: list[list[int]]
    dissent: list[float]


def free_texts(
    engine: LogitEngine[C],
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    decoding: DecodingSettings,
    choosers: Sequence[Chooser],
    coin_seed: int,
    texts_at_once: int = 8,
) -> FreeTexts:
    """Continue each prompt by `num_tokens` tokens.

    Args:
        engine: the public model and the worlds that vote.
        prompts: token ids.
        num_tokens: how many to add to each.
        decoding: decoder, temperature and candidates of the votes.
        choosers: one for each prompt.
        coin_seed: text i has the coins `PublicCoins.from_seed(coin_seed, i)`, whatever chooses.
        texts_at_once: how many are held in memory.

    Raises:
        InvalidValueError: there is not one chooser a prompt, or a prompt leaves no room.
    """
    integer_in_range("num_tokens", num_tokens, 1)
    integer_in_range("texts_at_once", texts_at_once, 1)
    if len(choosers) != len(prompts) or not prompts:
        raise InvalidValueError(f"{len(prompts)} prompts and {len(choosers)} choosers; give one chooser a prompt")
    room = engine.context_length - num_tokens
    if not 1 <= min(map(len, prompts)) <= max(map(len, prompts)) <= room:
        raise InvalidValueError(f"a prompt must have 1 to {room} tokens to leave room for {num_tokens}")
    tokens: list[list[int]] = []
    dissent: list[float] = []
    for start in range(0, len(prompts), texts_at_once):
        some = range(start, min(start + texts_at_once, len(prompts)))
        contexts = [engine.open(prompts[text]) for text in some]
        coins = [PublicCoins.from_seed(coin_seed, text) for text in some]
        grown: list[list[int]] = [[] for _ in some]
        dissenting = np.zeros(len(some))
        for step in range(num_tokens):
            for place, text in enumerate(some):
                votes_M = cast_votes(engine, contexts[place], decoding, coins[place], step)
                dissenting[place] += (votes_M != votes_M[0]).any()
                grown[place].append(choosers[text].choose(votes_M, step))
            if step + 1 < num_tokens:
                engine.extend(contexts, [text[-1] for text in grown])
        tokens += grown
        dissent += (dissenting / num_tokens).tolist()
    return FreeTexts(tokens, dissent)
