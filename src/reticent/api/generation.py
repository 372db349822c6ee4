"""Released tokens as a caller sees them: text as it comes, charges, and the reason for which an answer ended."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from reticent.dp.accounting import units_to_rho
from reticent.errors import BudgetExhaustedError
from reticent.pac.accounting import units_to_nats

if TYPE_CHECKING:
    from reticent.decoding.generate import GeneratedToken


class StopReason(StrEnum):
    """The reason for which an answer ended."""

    LENGTH = "length"
    END_OF_TEXT = "end of text"
    BUDGET = "budget"


@dataclass(frozen=True)
class Token:
    """One released token.

    Attributes:
        text: the text that it makes certain; empty while a character is incomplete, and for an end token.
        id: the token's id; None for a last item that carries no token, only the rest of the text.
        num_active: the number of distinct tokens that the worlds voted for. It says where worlds differ, which is
            nothing about the realised world but something about the corpus: show it coarsely; 0 if not counted.
    """

    text: str
    id: int | None
    num_active: int = 0


class ReleasedText:
    """The tokens of one answer, released while it is iterated.

    An iteration that is broken off releases and charges nothing more. Where the budget ends before the answer does, the
    text so far is yielded whole and `BudgetExhaustedError` is raised.

    Attributes:
        text: the text so far.
        num_tokens: tokens released so far.
        stopped_by: the reason for the end; None while tokens may follow.
    """

    def __init__(self, tokens: "Iterator[GeneratedToken]", tokenizer: Any, stop_tokens: Collection[int]) -> None:
        from reticent.decoding.detokenise import TextDecoder, TextStream

        self._tokens = tokens
        self._stop_tokens = stop_tokens
        decode = TextDecoder(tokenizer)
        self._stream = TextStream(decode, decode.stray_byte)
        self._charged_units = 0
        self._items = self._release()
        self.text = ""
        self.num_tokens = 0
        self.stopped_by: StopReason | None = None

    def __iter__(self) -> Iterator[Token]:
        return self._items

    def __next__(self) -> Token:
        return next(self._items)

    def read(self) -> str:
        """Release all tokens that remain, and return the whole text."""
        for _ in self._items:
            pass
        return self.text

    def _count(self, token: "GeneratedToken") -> None:
        """Count a token that was released."""
        self._charged_units += token.charge_units
        self.num_tokens += 1

    def _release(self) -> Iterator[Token]:
        exhausted = None
        try:
            while (token := next(self._tokens, None)) is not None:
                self._count(token)
                if token.token in self._stop_tokens:
                    self.stopped_by = StopReason.END_OF_TEXT
                    yield Token("", token.token, token.num_active)
                    break
                yield Token(self._append(self._stream.push(token.token)), token.token, token.num_active)
            else:
                self.stopped_by = StopReason.LENGTH
        except BudgetExhaustedError as error:
            self.stopped_by, exhausted = StopReason.BUDGET, error
        if rest := self._append(self._stream.finish()):
            yield Token(rest, None)
        if exhausted is not None:
            raise exhausted

    def _append(self, piece: str) -> str:
        self.text += piece
        return piece


class Answer(ReleasedText):
    """An answer of a realised-world deployment; made by `Deployment.generate`.

    Attributes:
        num_dissenting: tokens so far on which the worlds' votes differed.
        coin_key: the key of the public coins behind the votes; None for greedy votes.
    """

    def __init__(
        self,
        tokens: "Iterator[GeneratedToken]",
        tokenizer: Any,
        stop_tokens: Collection[int],
        coin_key: bytes | None,
    ) -> None:
        super().__init__(tokens, tokenizer, stop_tokens)
        self.coin_key = coin_key
        self.num_dissenting = 0

    @property
    def charged(self) -> float:
        """Nats charged for this answer so far."""
        return units_to_nats(self._charged_units)

    def _count(self, token: "GeneratedToken") -> None:
        super()._count(token)
        self.num_dissenting += token.num_active > 1


class CorpusAnswer(ReleasedText):
    """An answer of a corpus deployment; made by `CorpusDeployment.generate`."""

    @property
    def rho(self) -> float:
        """ρ charged for this answer so far."""
        return units_to_rho(self._charged_units)
