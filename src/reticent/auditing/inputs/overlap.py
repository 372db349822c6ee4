"""Texts that are in both sets, or nearly are: found before anything is scored.

An attack's figure means something only if members and non-members differ in membership alone. A text in both sets is
refused, since it has no label. A non-member that nearly repeats a member is scored and counted, since the model may
have learned it from its twin; the report warns of it. What counts as near is the Jaccard index of five-word
shingles (`text.deduplication`), of whole texts and, where the model reads them cut, of the part that it reads.

Only hashes leave this module: no message quotes a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reticent.auditing.results import NearDuplicate
from reticent.errors import AuditError
from reticent.text.corpus import NEAR_DUPLICATE_THRESHOLD, text_hash
from reticent.text.deduplication import DisjointSets, join_near_duplicates
from reticent.text.fields import readable_text

_HASHES_IN_MESSAGE = 5
_HASH_PREFIX = 12


@dataclass(frozen=True)
class TextSet:
    """One side of an audit: distinct texts in their first order.

    Attributes:
        texts: the texts, no two equal.
        hashes: SHA-256 of each, aligned with `texts`.
        num_repeats: how many later copies were left out; a copy would count one text twice in every interval.
    """

    texts: tuple[str, ...]
    hashes: tuple[str, ...]
    num_repeats: int

    @classmethod
    def of(cls, name: str, texts: Sequence[str]) -> "TextSet":
        """Keep the first of equal texts.

        Raises:
            AuditError: there is no text.
        """
        if not texts:
            raise AuditError(f"the set of {name} is empty; an audit needs members and non-members")
        distinct: dict[str, str] = {}
        for text in texts:
            distinct.setdefault(text_hash(text), text)
        return cls(tuple(distinct.values()), tuple(distinct), len(texts) - len(distinct))


@dataclass(frozen=True)
class Overlap:
    """Texts that two sets have nearly in common.

    Attributes:
        near_duplicates: each non-member that nearly repeats a member, with that member.
        groups: a number for each text, members first; near-duplicates have the same.
    """

    near_duplicates: tuple[NearDuplicate, ...]
    groups: tuple[int, ...]


def refuse_shared_texts(members: TextSet, nonmembers: TextSet) -> None:
    """Check that no text is both a member and a non-member.

    Raises:
        AuditError: there are such texts; the message counts them and names the first by hash.
    """
    shared = sorted(set(members.hashes) & set(nonmembers.hashes))
    if shared:
        raise AuditError(
            f"{len(shared)} text(s) are in both sets, so they are neither members nor non-members: "
            f"SHA-256 {abbreviate_hashes(shared)}; remove them from one set"
        )


def compare_sets(
    members: TextSet,
    nonmembers: TextSet,
    threshold: float = NEAR_DUPLICATE_THRESHOLD,
    read_texts: Sequence[str] | None = None,
) -> Overlap:
    """Find what the two sets have nearly in common.

    Near-duplication is closed transitively, through texts of either set. Each non-member is named once, with the first
    member it is connected to, in the order of the non-members.

    Args:
        members: one side.
        nonmembers: the other side.
        threshold: least Jaccard index, in (0, 1].
        read_texts: what a model reads of each text, members first, where it cuts them; compared as whole texts are.

    Raises:
        InvalidValueError: the threshold is outside (0, 1].
    """
    num_members = len(members.texts)
    sets = DisjointSets(num_members + len(nonmembers.texts))
    join_near_duplicates(sets, [readable_text(text) for text in (*members.texts, *nonmembers.texts)], threshold)
    if read_texts is not None:
        join_near_duplicates(sets, read_texts, threshold)
    # The smallest position represents its set, and members come first.
    groups = tuple(sets.find(position) for position in range(num_members + len(nonmembers.texts)))
    pairs = tuple(
        NearDuplicate(member_hash=members.hashes[root], nonmember_hash=nonmember)
        for root, nonmember in zip(groups[num_members:], nonmembers.hashes, strict=True)
        if root < num_members
    )
    return Overlap(pairs, groups)


def abbreviate_hashes(hashes: Sequence[str]) -> str:
    """The first few hashes, cut to a length that still tells them apart, and how many more there are."""
    shown = ", ".join(value[:_HASH_PREFIX] for value in hashes[:_HASHES_IN_MESSAGE])
    more = len(hashes) - _HASHES_IN_MESSAGE
    return f"{shown} and {more} more" if more > 0 else shown
