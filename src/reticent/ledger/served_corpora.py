"""A record of the corpora that were served, and under which guarantee, beside the user's keys.

Tokens of a realised-world deployment have no bound on presence. Where the same people see them and a corpus
deployment's, over the same records, the second promise is void. So who serves both must say so.

One empty file for each corpus and guarantee. It is never deleted: what was released stays released.
"""

import hashlib
from pathlib import Path
from typing import Final

from reticent._files import fsync_directory
from reticent.errors import InvalidValueError, StorageError
from reticent.guarantees import HIDES, Guarantee
from reticent.ledger.keys import Keyring

FOLDER_NAME: Final = "served"


class ServedCorpus:
    """The record of one corpus.

    Args:
        keyring: the user's; the record lies beside its folder.
        corpus_hash: of the run's manifest.
    """

    def __init__(self, keyring: Keyring, corpus_hash: str) -> None:
        self._folder = keyring.folder.parent / FOLDER_NAME
        self._name = hashlib.sha256(corpus_hash.encode()).hexdigest()

    def require_only(self, guarantee: Guarantee) -> None:
        """Check that the corpus was never served under another guarantee.

        Raises:
            InvalidValueError: it was.
        """
        for other in Guarantee:
            if other is not guarantee and self._mark(other).exists():
                raise InvalidValueError(
                    f"the same corpus was served under the guarantee {other}, whose tokens hide {HIDES[other]}. "
                    "From whoever sees tokens of both, presence in the corpus is not hidden. If "
                    "different people see them, add --beside-other-guarantee"
                )

    def record(self, guarantee: Guarantee, *, beside_other: bool) -> None:
        """Record durably that it is served under a guarantee.

        Args:
            guarantee: of the run.
            beside_other: True if the operator says that both may be served.

        Raises:
            InvalidValueError: it was served under another, and the operator does not say so; nothing is recorded.
            StorageError: the record cannot be written.
        """
        mark = self._mark(guarantee)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            was_there = mark.exists()
            # Written before the look at the other, so that of two servers that start at once one sees the other.
            mark.touch(mode=0o600)
            fsync_directory(self._folder)
        except OSError as error:
            raise StorageError(f"{self._folder} cannot be written ({error.strerror}); make it writable") from error
        if beside_other:
            return
        try:
            self.require_only(guarantee)
        except InvalidValueError:
            if not was_there:
                mark.unlink(missing_ok=True)
            raise

    def _mark(self, guarantee: Guarantee) -> Path:
        return self._folder / f"{self._name}.{guarantee.value}"
