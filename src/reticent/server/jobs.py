"""One answer in the making."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol

from reticent.decoding.engines import C, VoteRequest
from reticent.decoding.speculative import DraftLength
from reticent.decoding.votes import DecodingSettings
from reticent.randomness import PublicCoins


class FinishReason(StrEnum):
    """The reason for which an answer ended."""

    STOP = "stop"
    """A stop token was released, or a stop string is complete."""
    LENGTH = "length"
    BUDGET = "budget"
    """The deployment's budget does not cover the next token."""
    QUOTA = "quota"
    """The key's quota does not cover the next token."""
    STORAGE = "storage"
    """The ledger could not be written; the step's tokens stay hidden."""
    KEY_ENDED = "key_ended"
    """The key was revoked, or has expired."""
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    FAULT = "fault"
    """A defect, or a model that gave no distribution; the log has it."""


class TokenSource(StrEnum):
    """The model that wrote a token."""

    PRIVATE = "private"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class WrittenToken:
    """One token of an answer.

    Attributes:
        token: its id.
        source: the model that wrote it.
        charge_units: what was charged for it, in units of 2^-64 nat; 0 for one of the public model.
    """

    token: int
    source: TokenSource
    charge_units: int = 0


class Sink(Protocol):
    """The receiver of one answer's tokens. Called on the engine's thread; must return at once."""

    def push(self, written: WrittenToken, is_stop_token: bool) -> bool:
        """Take a token; return whether the answer wants another."""
        ...

    def end(self, ending: FinishReason) -> None:
        """Take the end; called exactly once."""
        ...


class Allowance(Protocol):
    """The tokens that the asking key may still have. Called on the engine's thread."""

    def take(self) -> bool:
        """Take one token if one is left."""
        ...

    def put_back(self) -> None:
        """Give back a token that was taken and not released."""
        ...

    def charge(self, units: int) -> None:
        """Add the charge for a token that was taken and released, in units of 2^-64 nat."""
        ...


@dataclass(eq=False)
class Job(Generic[C]):
    """One answer.

    Attributes:
        request: identifier for the ledger; public.
        key_id: the asking API key, or None.
        prompt: token ids, at least one, and fewer than the context window holds.
        settings: how its tokens are proposed, voted on and charged.
        coins: its public randomness.
        max_tokens: at most this many tokens; prompt and tokens together fit the context window.
        stop_tokens: ids that end it once released.
        sink: where its tokens go.
        allowance: what its key may still have.
        draft_length: the number of draft tokens for it.
        request_id: identifier of its request in logs.
        cancelled: set, by any thread, when nobody wants the answer any more.
        context: what the engine holds of it, while it is in the batch.
        written: its tokens so far.
        num_parts: in how many parts it was last read.
        turn: steps since then.
        admitted: when it first got a place in the batch, in seconds of `time.perf_counter`.
    """

    request: str
    key_id: str | None
    prompt: list[int]
    settings: DecodingSettings
    coins: PublicCoins
    max_tokens: int
    stop_tokens: frozenset[int]
    sink: Sink
    allowance: Allowance
    draft_length: DraftLength = field(default_factory=lambda: DraftLength(0))
    request_id: str = ""
    cancelled: bool = False
    context: C | None = field(default=None, repr=False)
    written: list[int] = field(default_factory=list, repr=False)
    num_parts: int = 0
    turn: int = 0
    admitted: float | None = None

    @property
    def log_fields(self) -> dict[str, str | None]:
        """Fields of a log line that say whose answer it is about."""
        return {"request_id": self.request_id, "answer_id": self.request, "key_id": self.key_id}

    @property
    def step(self) -> int:
        """The number of the step that comes next: tokens so far."""
        return len(self.written)

    @property
    def vote_request(self) -> VoteRequest:
        """The request for votes on its next token."""
        return VoteRequest(self.settings, self.coins, self.step)

    @property
    def open_context(self) -> C:
        """The context of an answer whose prompt has been read."""
        assert self.context is not None, "an answer is decoded once its prompt is read"
        return self.context
