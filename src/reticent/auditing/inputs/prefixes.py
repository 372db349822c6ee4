"""Texts behind a prefix of non-members, for ReCaLL (arXiv 2406.15968).

A model whose weights are here reads the prefix once for all texts, token by token; a server gets it as text, each time.

The prefix is some whole texts ("shots"), each followed by a blank line, behind the tokenizer's beginning-of-text token.
No end-of-text token is inside it. Of a text the same tokens are scored as without a prefix; of the prefix, none.

A text is never part of its own prefix. The text that is a shot itself gets the prefix without it, and no other text's
prefix changes for that.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.targets.endpoint import RemoteScorer, ServerScorer
from reticent.auditing.targets.endpoint_client import RefusedRequestError
from reticent.auditing.targets.scoring import ModelScorer
from reticent.errors import InvalidValueError
from reticent.protocols import TokenSignals
from reticent.text.corpus import text_hash

_AFTER_SHOT = "\n\n"


class PrefixedScorer:
    """A model that reads every text behind the same shots; implements `reticent.protocols.Scorer`.

    Attributes:
        fingerprint: SHA-256 over the model's and the shots that fit.
        num_shots: how many fit.
    """

    is_white_box = True

    def __init__(self, scorer: ModelScorer, prefix_texts: Sequence[str], longest_text: int) -> None:
        """Keep as many shots, from the first, as fit the model's context before the longest text.

        Args:
            scorer: the model.
            prefix_texts: the shots.
            longest_text: tokens of the longest text that will be scored: all texts get the same prefix.

        Raises:
            InvalidValueError: there is no shot, or not even the first fits.
        """
        self._scorer = scorer
        distinct = dict.fromkeys(text for text in prefix_texts if text.strip())
        if not distinct:
            raise InvalidValueError("a prefix needs at least one text that is not blank; give non-members for it")
        shots = {text_hash(text): _shot_ids(scorer, text) for text in distinct}
        self._shots = _those_that_fit(shots, scorer.context_length, longest_text)
        self.num_shots = len(self._shots)
        identity = "\n".join(("reticent prefix 1", scorer.fingerprint, *self._shots))
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        """The signals of each text's own tokens, in order; None for a text of which no token is predicted.

        Raises:
            InvalidValueError: a text is the only shot of its own prefix, or longer than announced.
        """
        result: list[TokenSignals | None] = [None] * len(texts)
        encoded = self._scorer.encode(texts)
        for own_shot, numbers in self._by_own_shot(texts).items():
            prefix_ids = self._prefix_without(own_shot)
            scored = self._scorer.score_encoded([encoded[number] for number in numbers], prefix_ids)
            for number, signals in zip(numbers, scored, strict=True):
                result[number] = signals
        return result

    def _by_own_shot(self, texts: Sequence[str]) -> dict[str | None, list[int]]:
        """Texts by the hash of the shot that each one is, None for a text that is no shot."""
        groups: dict[str | None, list[int]] = {}
        for number, text in enumerate(texts):
            name = text_hash(text)
            groups.setdefault(name if name in self._shots else None, []).append(number)
        return groups

    def _prefix_without(self, own_shot: str | None) -> NDArray[np.int64]:
        others = [ids for name, ids in self._shots.items() if name != own_shot]
        if not others:
            raise InvalidValueError(
                f"text {own_shot} is the only text of its own prefix; give more non-members for the prefix"
            )
        return np.concatenate(others)


class PrefixedServer(ServerScorer):
    """A server that gets every text behind the same shots, as one text.

    Attributes:
        num_shots: how many the server takes before the longest text.
    """

    def __init__(self, scorer: RemoteScorer, prefix_texts: Sequence[str], longest_text: str) -> None:
        """Halve the shots until the server takes them before the text with the most characters.

        Raises:
            InvalidValueError: there is no shot, or the server does not even take the first.
            ServerGoneError: it has stopped answering.
        """
        super().__init__(scorer.client, scorer.template)
        self._scorer = scorer
        shots = list(dict.fromkeys(text for text in prefix_texts if text.strip()))
        while shots and not self._fits(shots, longest_text):
            shots = shots[: len(shots) // 2]
        if not shots:
            raise InvalidValueError(
                "the server takes no text of the prefix before the longest text, or does not show a prompt's tokens"
            )
        self._shots = shots
        self.num_shots = len(shots)
        identity = "\n".join(("reticent text prefix 1", scorer.fingerprint, *map(text_hash, shots)))
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()

    def signals(self, text: str) -> TokenSignals:
        """See `ServerScorer.signals`; a text is not part of its own prefix."""
        return self._scorer.signals_behind(self._prefix([shot for shot in self._shots if shot != text]), text)

    def _fits(self, shots: Sequence[str], text: str) -> bool:
        try:
            self._scorer.signals_behind(self._prefix(shots), text)
        except RefusedRequestError:
            return False
        return True

    def _prefix(self, shots: Sequence[str]) -> str:
        return "".join(f"{self.template.render(shot)}{_AFTER_SHOT}" for shot in shots)


def longest_text(scorer: ModelScorer, texts: Sequence[str]) -> int:
    """Tokens of the longest of some texts."""
    return max((len(encoded.token_ids) for encoded in scorer.encode(texts)), default=0)


def _shot_ids(scorer: ModelScorer, text: str) -> NDArray[np.int64]:
    """A shot as token ids, cut where the template cuts a text, without special tokens."""
    tokenizer = scorer.tokenizer
    ids = tokenizer(scorer.template.render(text, tokenizer), add_special_tokens=False, verbose=False)["input_ids"]
    after = tokenizer(_AFTER_SHOT, add_special_tokens=False)["input_ids"]
    return np.array([*ids[: scorer.template.max_tokens], *after], dtype=np.int64)


def _those_that_fit(
    shots: dict[str, NDArray[np.int64]], context_length: int | None, longest: int
) -> dict[str, NDArray[np.int64]]:
    """The first shots that leave room for the longest text; whole shots only."""
    if context_length is None:
        return shots
    room = context_length - longest
    lengths = np.cumsum([len(ids) for ids in shots.values()])
    count = int((lengths <= room).sum())
    if not count:
        raise InvalidValueError(
            f"no text of the prefix fits: the model's context of {context_length} tokens leaves {max(room, 0)} before "
            f"the longest text, and the first text of the prefix has {lengths[0]}; give shorter ones"
        )
    return dict(list(shots.items())[:count])
