"""Near-duplicate texts, found with MinHash, confirmed exactly and joined into disjoint sets.

Similarity is the Jaccard index |A ∩ B| / |A ∪ B| of the texts' shingle sets. A shingle is a run of five consecutive
words of the normalised text: NFKC, case-folded, punctuation dropped; in scripts written without spaces each character
counts as a word. A text of fewer than five words is a single shingle, so that only its equals match it.

Candidate pairs come from locality-sensitive hashing of MinHash signatures (Broder, "On the resemblance and containment
of documents", 1997; banding as in Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", section 3.4) and are
joined only if their exact index reaches the threshold. So no pair is joined wrongly, and a pair right at the threshold
is missed with probability at most `MAX_MISS_PROBABILITY`, a more similar pair less often. (Shingles are compared by
64-bit hashes; two different shingles among a million collide with probability below 1e-7.) Results depend on the
arguments alone.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from datasketch import MinHash, MinHashLSH
from numpy.typing import NDArray

from reticent.errors import InvalidValueError

SHINGLE_WORDS = 5
NUM_PERMUTATIONS = 128
MAX_MISS_PROBABILITY = 1e-4

_UNSPACED_SCRIPTS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(f"[{_UNSPACED_SCRIPTS}]|[^\\W{_UNSPACED_SCRIPTS}]+")
_SHINGLE_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SIGNATURE_CHUNK = 4096


class DisjointSets:
    """Union-find over 0 .. size - 1 (Tarjan 1975): the smallest member represents its set."""

    def __init__(self, size: int) -> None:
        self._parents = list(range(size))

    def find(self, item: int) -> int:
        """Return the smallest member of the set that holds `item`."""
        root = item
        while self._parents[root] != root:
            root = self._parents[root]
        while self._parents[item] != root:
            self._parents[item], item = root, self._parents[item]
        return root

    def join(self, first: int, second: int) -> None:
        """Merge the sets of the two items."""
        low, high = sorted((self.find(first), self.find(second)))
        self._parents[high] = low

    def count(self) -> int:
        """Return the number of sets."""
        return sum(parent == item for item, parent in enumerate(self._parents))


def join_near_duplicates(sets: DisjointSets, texts: Sequence[str], threshold: float) -> None:
    """Join in `sets` the positions of all texts whose similarity reaches `threshold`, transitively.

    Pairs that are joined already are not compared.

    Raises:
        InvalidValueError: the threshold is outside (0, 1].
    """
    num_bands, rows = bands_and_rows(threshold)
    word_hasher = _WordHasher()
    first_with_words: dict[bytes, int] = {}
    shingles: dict[int, NDArray[np.uint64]] = {}
    index = MinHashLSH(num_perm=NUM_PERMUTATIONS, params=(num_bands, rows))
    blank_signature = MinHash(num_perm=NUM_PERMUTATIONS, hashfunc=int)
    for position, text in enumerate(texts):
        words = word_hasher.hashes(text)
        first = first_with_words.setdefault(hashlib.blake2b(words.tobytes()).digest(), position)
        if first != position:
            sets.join(first, position)
            continue
        shingles[position] = shingle_set(words)
        signature = _signature(blank_signature, shingles[position])
        for candidate in sorted(index.query(signature)):
            if sets.find(candidate) == sets.find(position):
                continue
            if jaccard(shingles[candidate], shingles[position]) >= threshold:
                sets.join(candidate, position)
        index.insert(position, signature)


def bands_and_rows(threshold: float) -> tuple[int, int]:
    """Return (b, r), b >= 2 and b * r <= `NUM_PERMUTATIONS`, with the largest r whose chance of a miss is small enough.

    A pair of index s becomes a candidate with probability 1 - (1 - s^r)^b. More rows mean fewer false candidates.

    Raises:
        InvalidValueError: the threshold is outside (0, 1].
    """
    if not 0.0 < threshold <= 1.0:
        raise InvalidValueError(f"the near-duplicate threshold must lie in (0, 1], got {threshold!r}")
    for rows in range(NUM_PERMUTATIONS // 2, 1, -1):
        num_bands = NUM_PERMUTATIONS // rows
        if (1.0 - threshold**rows) ** num_bands <= MAX_MISS_PROBABILITY:
            return num_bands, rows
    return NUM_PERMUTATIONS, 1


def shingle_set(word_hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the sorted distinct shingle hashes of a text of at least one word."""
    size = min(SHINGLE_WORDS, len(word_hashes))
    num_shingles = len(word_hashes) - size + 1
    hashes = np.full(num_shingles, np.uint64(size))
    for offset in range(size):
        hashes = hashes * _SHINGLE_MULTIPLIER + word_hashes[offset : offset + num_shingles]
    return np.unique(hashes)


def jaccard(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> float:
    """Return |A ∩ B| / |A ∪ B| of two non-empty sets given as arrays without repeats."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


class _WordHasher:
    """64-bit hashes of a text's words, each distinct word hashed once."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def hashes(self, text: str) -> NDArray[np.uint64]:
        """Return uint64[words]; a text without any word counts as one word."""
        normalised = unicodedata.normalize("NFKC", text).casefold()
        words = _WORD.findall(normalised) or [normalised.strip()]
        return np.fromiter((self._hash(word) for word in words), dtype=np.uint64, count=len(words))

    def _hash(self, word: str) -> int:
        known = self._known.get(word)
        if known is None:
            known = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
            self._known[word] = known
        return known


def _signature(blank: MinHash, shingles: NDArray[np.uint64]) -> MinHash:
    signature = blank.copy()
    high_bits = (shingles >> np.uint64(32)).tolist()
    for start in range(0, len(high_bits), _SIGNATURE_CHUNK):
        signature.update_batch(high_bits[start : start + _SIGNATURE_CHUNK])
    return signature
