"""The state of one answer while it is generated."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol

from reticent.decoding.engines import C, VoteRequest
from reticent.decoding.speculative import DraftLength
from reticent.decoding.votes import TokenSettings
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
        reserve_units: the most that it could cost, in units of the account; 0 for the public model. Its charge may
            depend on whether the worlds' votes differed, which no client may see, and so it does not come this far.
    """

    token: int
    source: TokenSource
    reserve_units: int = 0


class Sink(Protocol):
    """The receiver of one answer's tokens. Called on the engine's thread; must return at once."""

    def push(self, written: WrittenToken, is_stop_token: bool) -> bool:
        """Take a token; return True if the answer needs another."""
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
        """Add the most that a token could cost which was taken and released, in units of the account."""
        ...


@dataclass(eq=False)
class Job(Generic[C]):
    """One answer.

    Attributes:
        answer_id: identifier of the answer in the ledger and the log; public.
        key_id: the asking API key, or None.
        prompt: token ids, at least one, and fewer than the context window holds.
        settings: for candidates, votes and charges.
        coins: its public randomness.
        max_tokens: at most this many tokens; prompt and tokens together fit the context window.
        stop_tokens: ids that end it once released.
        sink: receives its tokens.
        allowance: the remaining quota of its key.
        draft_length: number of tokens to draft for it.
        request_id: identifier of its request in logs.
        cancelled: set by any thread once the answer is no longer wanted.
        context: its cached state in the engine; None outside the batch and during prefill.
        written: its tokens so far.
        num_chunks: number of chunks of its last prefill.
        steps_since_prefill: decode steps since its last prefill.
        admitted: time of its first admission to the batch, in seconds of `time.perf_counter`.
    """

    answer_id: str
    key_id: str | None
    prompt: list[int]
    settings: TokenSettings
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
    num_chunks: int = 0
    steps_since_prefill: int = 0
    admitted: float | None = None

    @property
    def log_fields(self) -> dict[str, str | None]:
        """Fields that identify the answer in a log line."""
        return {"request_id": self.request_id, "answer_id": self.answer_id, "key_id": self.key_id}

    @property
    def step(self) -> int:
        """The number of the next step, which is the number of tokens so far."""
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
