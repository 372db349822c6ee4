"""Settings of a server: the privacy settings apart from the limits that only protect the machine.

Contract: both are fixed for the life of the process. No request can change what a token costs, how it is released, or
how the account is kept.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from ipaddress import ip_network
from typing import TYPE_CHECKING

from reticent import _validate
from reticent.decoding.votes import DecodingSettings
from reticent.dp.defaults import LARGEST_DEFAULT_DELTA
from reticent.errors import InvalidValueError

if TYPE_CHECKING:
    from reticent.decoding.aggregates import CorpusDecoding


class OnExhausted(StrEnum):
    """The continuation of an answer once the deployment's budget is spent."""

    REFUSE = "refuse"
    """It ends; new requests get status 429."""
    PUBLIC = "public"
    """The public model continues alone, without the worlds and without charge, and its text is marked."""


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients may ask for; they protect the machine, not the secret.

    Attributes:
        max_concurrent: answers that are decoded together in one step; API keys that want places share them.
        max_queue: answers of one API key that may wait; beyond that, its requests get status 429.
        max_answers: most answers to one request, `n` times its prompts.
        max_tokens: longest answer.
        max_prompt_tokens: longest prompt in tokens, or None for what the context window leaves room for.
        max_body_bytes: largest request body.
        default_max_tokens: length of a chat answer whose request names none, or `max_tokens` where that is less. Every
            token is charged to one finite budget, so an answer is never as long as the window by default.

    Raises:
        InvalidValueError: a value below 1.
    """

    max_concurrent: int = 8
    max_queue: int = 64
    max_answers: int = 16
    max_tokens: int = 1024
    max_prompt_tokens: int | None = None
    max_body_bytes: int = 1 << 20
    default_max_tokens: int = 256

    def __post_init__(self) -> None:
        for limit in fields(self):
            if limit.name != "max_prompt_tokens":
                _validate.integer_in_range(limit.name.replace("_", "-"), getattr(self, limit.name), 1)
        if self.max_prompt_tokens is not None:
            _validate.integer_in_range("max-prompt-tokens", self.max_prompt_tokens, 1)


class ClientAddresses(StrEnum):
    """The log lines that name the client's address, which is personal data in many places."""

    NEVER = "never"
    REFUSALS = "refusals"
    """Lines about requests and connections that were refused."""
    ALWAYS = "always"


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds on connections, in number and seconds; they protect the machine, not the secret.

    Attributes:
        max_connections: connections at one time, idle ones included.
        head_seconds: time for a request's head to arrive, from the connection or the head's first byte on.
        body_seconds: time for a request's body to arrive.
        write_seconds: time for which an answer that its client does not read is kept.
        trusted_proxies: addresses and networks whose `X-Forwarded-For` is believed.
        addresses: which log lines name the client's address.

    Raises:
        InvalidValueError: a value that is not positive.
    """

    max_connections: int = 512
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    write_seconds: float = 60.0
    trusted_proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    addresses: ClientAddresses = ClientAddresses.REFUSALS

    def __post_init__(self) -> None:
        _validate.integer_in_range("max-connections", self.max_connections, 1)
        for name in ("head", "body", "write"):
            _validate.positive_finite(f"{name}-timeout", getattr(self, f"{name}_seconds"))
        for proxy in self.trusted_proxies:
            try:
                ip_network(proxy)
            except ValueError:
                raise InvalidValueError(
                    f"trusted-proxy must be an address or a network such as 10.0.0.0/8, got {proxy!r}"
                ) from None


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model_name: what `/v1/models` lists and requests must name.
        decoding: decoder, charge for one token, release mechanism, number of candidates, and the temperature where a
            request names none; or, for a corpus deployment, its constants.
        on_exhausted: continuation once the budget is spent.
        log_texts: whether prompts and answers are written to the log.
        limits: bounds on what clients may ask for.
        num_drafts: most tokens that the public model drafts for an answer; see `decoding.speculative`.
        refuse_seeds: whether a request with a seed gets status 400.
        connections: bounds on connections, and what is logged of clients.
        drain_seconds: seconds for answers in progress once the server is told to stop.
        delta: δ at which a corpus deployment's ε is shown.
    """

    model_name: str
    decoding: "DecodingSettings | CorpusDecoding"
    on_exhausted: OnExhausted = OnExhausted.REFUSE
    log_texts: bool = False
    limits: Limits = field(default_factory=Limits)
    num_drafts: int = 0
    refuse_seeds: bool = False
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    drain_seconds: float = 30.0
    delta: float = LARGEST_DEFAULT_DELTA

    def __post_init__(self) -> None:
        _validate.open_probability("delta", self.delta)
        _validate.non_negative_finite("drain-seconds", self.drain_seconds)
        _validate.integer_in_range("drafts", self.num_drafts, 0)
