"""Speculative decoding: draft tokens of the public model, so that one step computes several positions.

The public model drafts alone with the coins of the request, and all worlds are then evaluated at all draft positions in
one step, which costs less than one step for each: attention reads each cached key once, and on a device that waits for
memory so does everything else. The idea is that of arXiv 2211.17192, without its acceptance rule: a position is
released by the mechanism from the worlds' votes there, whatever was drafted. A draft token is accepted if it is the one
that is released; it then was computed beforehand. Otherwise it is rejected, and what was computed behind it is dropped.

What is guaranteed. Votes, releases and charges are those of decoding without drafts, one after another; the
distribution of the released tokens is the same. What is computed when is a function of released tokens, public coins
and the public model. A step of another shape may round the last bits of a logit otherwise, as docs/architecture.md
says.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reticent.decoding.engines import C, VoteEngine, VoteRequest


@dataclass
class DraftLength:
    """The number of draft tokens for one request: more while drafts are accepted, fewer after a rejected one.

    After a step all of whose draft tokens were accepted, twice as many; else as many as were, and at least one.

    Attributes:
        maximum: never more; 0 to draft nothing.
        length: draft tokens behind the last token that was computed.
        num_accepted: the number of them accepted so far.
    """

    maximum: int
    length: int = 1
    num_accepted: int = 0

    def next_length(self) -> int:
        """Choose the number of draft tokens in the step that now begins."""
        longer = 2 * self.length if self.num_accepted == self.length else max(1, self.num_accepted)
        self.length, self.num_accepted = min(longer, self.maximum), 0
        return self.length


@dataclass(frozen=True)
class Continuation:
    """The continuation of one context.

    Attributes:
        token: the token it gets now.
        request: the request for votes on the token after it.
        num_wanted: tokens the answer may still have after this one.
        draft_length: of its answer; counts what is accepted.
    """

    token: int
    request: VoteRequest
    num_wanted: int
    draft_length: DraftLength


def extend_with_drafts(engine: VoteEngine[C], contexts: Sequence[C], continuations: Sequence[Continuation]) -> None:
    """Give each context its token, and compute draft tokens behind it in the same step."""
    tokens = [continuation.token for continuation in continuations]
    counts = [_num_drafts(engine, context, each) for context, each in zip(contexts, continuations, strict=True)]
    drafts = None
    if any(counts):
        drafts = engine.draft(contexts, tokens, [continuation.request for continuation in continuations], counts)
    engine.extend(contexts, tokens, drafts)


def _num_drafts(engine: VoteEngine[C], context: C, continuation: Continuation) -> int:
    draft_length = continuation.draft_length
    if not draft_length.maximum:
        return 0
    if engine.has_draft(context, continuation.token):
        draft_length.num_accepted += 1
        return 0
    # The last token wanted is released from the states behind the one before it.
    return min(draft_length.next_length(), max(0, continuation.num_wanted - 1))
