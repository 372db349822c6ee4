"""Membership labels, checked against what a target says it was trained on, text by text, by hash.

A wrong label is worse than a missing one, so whatever contradicts a list is refused. Texts that a training held out for
validation are in neither list: they are not members, and they are not non-members either, since their loss may have
been looked at.
"""

from collections.abc import Collection, Sequence

from reticent.auditing.inputs.overlap import TextSet, abbreviate_hashes
from reticent.errors import AuditError
from reticent.text.corpus import text_hash


def check_labels(
    members: TextSet,
    nonmembers: TextSet,
    member_hashes: Collection[str] | None,
    heldout_hashes: Collection[str] | None,
) -> tuple[str, ...]:
    """Check both sets against a target's lists and return what the report must warn of.

    Args:
        members: texts said to be members.
        nonmembers: texts said not to be.
        member_hashes: texts the target was trained on; None where it does not say.
        heldout_hashes: texts that were held out of the same corpus, for the audit.

    Raises:
        AuditError: a member was not trained on, or a non-member was.
    """
    if member_hashes is None:
        return ("the target does not say what it was trained on: the labels are taken as given",)
    trained_on, heldout = frozenset(member_hashes), frozenset(heldout_hashes or ())
    wrong = [text for text in members.hashes if text not in trained_on]
    if wrong:
        were_heldout = sum(text in heldout for text in wrong)
        raise AuditError(
            f"{len(wrong)} of {len(members.hashes)} members were not trained on ({were_heldout} were held out for the "
            f"audit, the others for validation or never seen): SHA-256 {abbreviate_hashes(wrong)}; "
            "give the trained texts"
        )
    wrong = [text for text in nonmembers.hashes if text in trained_on]
    if wrong:
        raise AuditError(
            f"{len(wrong)} of {len(nonmembers.hashes)} non-members were trained on: "
            f"SHA-256 {abbreviate_hashes(wrong)}; give texts that were held out"
        )
    foreign = sum(text not in heldout for text in nonmembers.hashes)
    if heldout and foreign:
        return (
            f"{foreign} of {len(nonmembers.hashes)} non-members are not among the texts held out of the training "
            "corpus: see the blind baseline for whether they differ in kind",
        )
    return ()


def divide_corpus(
    texts: Sequence[str], member_hashes: Collection[str], nonmember_hashes: Collection[str]
) -> tuple[list[str], list[str], int]:
    """Divide a corpus by a target's lists into members, non-members, and a number of texts in neither.

    Raises:
        AuditError: no text is on one of the lists.
    """
    trained_on, heldout = frozenset(member_hashes), frozenset(nonmember_hashes)
    hashed = [(text_hash(text), text) for text in texts]
    members = [text for key, text in hashed if key in trained_on]
    nonmembers = [text for key, text in hashed if key in heldout]
    if not members or not nonmembers:
        raise AuditError(
            f"of {len(texts)} texts, {len(members)} are on the target's list of members and {len(nonmembers)} on its "
            "list of held-out texts; give the corpus it was made from, with the same text key, or give --nonmembers"
        )
    return members, nonmembers, len(texts) - len(members) - len(nonmembers)
