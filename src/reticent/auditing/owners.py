"""Owners of texts: whose texts stay together in every interval and fold, and who is attacked as a whole.

An owner is a privacy unit, as a patient with several letters is. With owners, a text's figures take owners as what was
sampled (`stats.clusters`), and each attack is reported a second time per owner: an owner's score is the mean of the
scores of the owner's texts, so that several weak signs add up. Owners' names stay in memory.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.errors import AuditError
from reticent.stats.clusters import cluster_numbers
from reticent.text.corpus import text_hash
from reticent.text.deduplication import DisjointSets


@dataclass(frozen=True)
class Owners:
    """The owner of each text.

    Attributes:
        by_hash: the owner's name by the SHA-256 of the text.
    """

    by_hash: Mapping[str, str]

    @classmethod
    def of(cls, texts: Sequence[str], names: Sequence[str]) -> "Owners":
        """Take the owner of each text; a text that several own counts for the first."""
        by_hash: dict[str, str] = {}
        for text, name in zip(texts, names, strict=True):
            by_hash.setdefault(text_hash(text), name)
        return cls(by_hash)

    def names(self, hashes: Sequence[str]) -> list[str]:
        """The owner of each of some texts."""
        return [self.by_hash[key] for key in hashes]

    def clusters(self, hashes: Sequence[str]) -> NDArray[np.int64]:
        """Number the owner of each of some texts, int64[texts]."""
        return cluster_numbers(self.names(hashes))

    def refuse_divided(self, members: Sequence[str], nonmembers: Sequence[str]) -> None:
        """Check that no owner has texts among both members and non-members.

        Raises:
            AuditError: there are such owners; the message counts them.
        """
        divided = set(self.names(members)) & set(self.names(nonmembers))
        if divided:
            raise AuditError(
                f"{len(divided)} owner(s) have texts in both sets, so they are neither in nor out: hold out whole "
                "owners (`reticent adapt --unit-key` does), or leave --unit-key out and audit texts alone"
            )

    def join_groups(self, groups: Sequence[int], hashes: Sequence[str]) -> tuple[int, ...]:
        """Join groups of texts that have an owner in common; a number for each text, alike for those of one group."""
        sets = DisjointSets(len(hashes))
        first: dict[tuple[str, object], int] = {}
        for position, labels in enumerate(zip(groups, self.names(hashes), strict=True)):
            for kind, label in zip(("group", "owner"), labels, strict=True):
                sets.join(first.setdefault((kind, label), position), position)
        return tuple(sets.find(position) for position in range(len(hashes)))

    def mean_scores(self, scores: Mapping[str, float], hashes: Sequence[str]) -> list[float]:
        """Each owner's mean over those of some texts that have a score; an owner without any is left out.

        Scores of +inf and −inf together have no mean and count as 0 evidence: the owner is left out as well.
        """
        of_owner: dict[str, list[float]] = defaultdict(list)
        for key in hashes:
            if key in scores:
                of_owner[self.by_hash[key]].append(scores[key])
        with np.errstate(invalid="ignore"):
            means = [float(np.mean(values)) for values in of_owner.values()]
        return [mean for mean in means if not np.isnan(mean)]
