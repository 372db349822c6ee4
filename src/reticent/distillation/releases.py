"""Public texts labelled, or continued, by a run's worlds: every token through the curator, text after text, resumably.

| mode | what is released | what a text costs |
|---|---|---|
| `label` | at each position of a public text, the token that follows it | all positions in one commit |
| `continue` | tokens behind the beginning of a public text | a commit a token |

In `label` mode the text is read once (teacher forcing), so its votes are all fixed before any of its tokens is
released. A text whose tokens are not all on disk is released anew after a crash: that costs its charges again, and
never passes the cap. Where the cap refuses a token, that one and all after it are left out, those that cost nothing
included: which of them are free would tell where the worlds' votes differ.

Shape suffixes: N tokens of a text, K candidates, M worlds.
"""

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent._files import atomic_write
from reticent.decoding.engines import VoteEngine
from reticent.decoding.generate import generate
from reticent.decoding.votes import Decoder, DecodingSettings, greedy_votes, gumbel_votes
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import BudgetExhaustedError
from reticent.pac.curator import Ballot, Curator
from reticent.protocols import Progress
from reticent.randomness import PublicCoins
from reticent.text.template import IGNORED_LABEL


class ReleaseMode(StrEnum):
    """The use that is made of public texts."""

    LABEL = "label"
    CONTINUE = "continue"


@dataclass(frozen=True, eq=False)
class LabelledText:
    """One public text and the tokens released on it.

    Attributes:
        token_ids: what a student reads, int64[N].
        labels: the token released at each place, to be predicted from the tokens before it; `IGNORED_LABEL` where none
            was, int64[N].
        num_public: how many tokens at the beginning are the public text's own.
        is_exhausted: True if the cap refused a token of this text.
    """

    token_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    num_public: int
    is_exhausted: bool

    @property
    def num_released(self) -> int:
        """The number of released tokens."""
        return int((self.labels != IGNORED_LABEL).sum())

    def save(self, path: Path) -> None:
        """Write the text, durably.

        Raises:
            StorageError: it cannot be written.
        """

        def write(scratch: Path) -> None:
            with scratch.open("wb") as file:
                np.savez(
                    file,
                    token_ids=self.token_ids,
                    labels=self.labels,
                    num_public=self.num_public,
                    is_exhausted=self.is_exhausted,
                )

        atomic_write(path, write)

    @classmethod
    def load(cls, path: Path) -> "LabelledText":
        """Read a text that `save` wrote."""
        with np.load(path) as arrays:
            return cls(arrays["token_ids"], arrays["labels"], int(arrays["num_public"]), bool(arrays["is_exhausted"]))


TextRelease = Callable[[NDArray[np.int64], int], LabelledText]
"""Releases tokens on a public text: takes its token ids and the most tokens to release."""


@dataclass(frozen=True)
class LabelRelease:
    """Labels public texts; a `TextRelease`.

    Attributes:
        forcing: the public model and all worlds.
        curator: releases the tokens.
        settings: how tokens are proposed, voted on and charged.
    """

    forcing: TeacherForcing
    curator: Curator
    settings: DecodingSettings

    def __call__(self, token_ids: NDArray[np.int64], limit: int) -> LabelledText:
        """Release the token after each of the first `limit` tokens, in one commit."""
        settings = self.settings
        coins = PublicCoins.fresh()
        request = f"distill-{secrets.token_hex(8)}"
        coin_key = coins.key if settings.decoder is Decoder.GUMBEL else None
        read = token_ids[: limit + 1]
        ballots = [
            Ballot(votes_M, settings.charging, request, step, coin_key, release_mechanism=settings.release_mechanism)
            for step, votes_M in enumerate(self._votes(read, coins))
        ]
        released = self.curator.release_many(ballots)
        labels = np.full(len(read), IGNORED_LABEL, dtype=np.int64)
        for step, token in enumerate(released):
            if token is None:
                return LabelledText(read, labels, len(read), is_exhausted=True)
            labels[step + 1] = token.token
        return LabelledText(read, labels, len(read), is_exhausted=False)

    def _votes(self, token_ids: NDArray[np.int64], coins: PublicCoins) -> Iterator[NDArray[np.int64]]:
        """Every world's vote for the token after each position but the last, int64[M] each."""
        settings = self.settings
        # The worlds' normalisers are not needed: one position is the fewest that can be asked for.
        for block in self.forcing.blocks(token_ids.tolist(), settings.num_candidates, normalise_every=len(token_ids)):
            for place, candidates_K in enumerate(block.candidates_NK):
                by_id = candidates_K.argsort()
                logits_MK, ids_K = block.worlds_MNK[:, place, by_id], candidates_K[by_id]
                if settings.decoder is Decoder.GREEDY:
                    yield greedy_votes(logits_MK, ids_K)
                else:
                    yield gumbel_votes(
                        logits_MK, ids_K, coins.gumbel(block.start + place, ids_K.size), settings.temperature
                    )


@dataclass(frozen=True)
class ContinuationRelease:
    """Continues the beginnings of public texts; a `TextRelease`.

    Attributes:
        engine: the public model and all worlds.
        curator: releases the tokens.
        settings: how tokens are proposed, voted on and charged.
        prompt_tokens: tokens of each public text that are read.
        max_tokens: the most tokens of prompt and continuation.
        stop_tokens: ids that end a continuation.
    """

    engine: VoteEngine[Any]
    curator: Curator
    settings: DecodingSettings
    prompt_tokens: int
    max_tokens: int
    stop_tokens: Collection[int]

    def __call__(self, token_ids: NDArray[np.int64], limit: int) -> LabelledText:
        """Release at most `limit` tokens behind the beginning of a text, one by one."""
        prompt = token_ids[: self.prompt_tokens]
        tokens = generate(
            self.engine,
            prompt.tolist(),
            self.settings,
            self.curator,
            PublicCoins.fresh(),
            f"distill-{secrets.token_hex(8)}",
            min(limit, self.max_tokens - len(prompt)),
            self.stop_tokens,
        )
        released: list[int] = []
        is_exhausted = False
        try:
            for token in tokens:
                released.append(token.token)  # noqa: PERF401 - those before an error count
        except BudgetExhaustedError:
            is_exhausted = True
        unlabelled = np.full(len(prompt), IGNORED_LABEL, dtype=np.int64)
        behind = np.array(released, dtype=np.int64)
        return LabelledText(
            np.concatenate([prompt, behind]), np.concatenate([unlabelled, behind]), len(prompt), is_exhausted
        )


def release_texts(
    release: TextRelease, texts: Sequence[NDArray[np.int64]], num_tokens: int, folder: Path, progress: Progress
) -> list[LabelledText]:
    """Release up to `num_tokens` tokens on public texts in order, but for texts that an earlier call has on disk.

    Ends when the tokens are released, the texts are at their end, or the cap refuses a token.

    Args:
        release: releases the tokens of one text.
        texts: token ids of each.
        num_tokens: the most tokens in all.
        folder: keeps finished texts, a file each.
        progress: told about released tokens.

    Raises:
        StorageError: a charge or a text cannot be made durable.
    """
    progress.begin("releasing tokens", num_tokens)
    done: list[LabelledText] = []
    left = num_tokens
    for number, token_ids in enumerate(texts):
        path = folder / f"text-{number:06d}.npz"
        if path.is_file():
            text = LabelledText.load(path)
        else:
            text = release(token_ids, left)
            text.save(path)
        done.append(text)
        left -= text.num_released
        progress.advance(text.num_released)
        if text.is_exhausted or left <= 0:
            break
    return done
