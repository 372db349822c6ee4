"""Signals on disk, so that a text is scored once by each model, also across runs and kills.

    FOLDER/<fingerprint>/<number>.npz    the signals of some texts: hashes, and one array a signal, laid end to end

What is found is found by the scorer's fingerprint (which is repeated inside each file) and the text's hash, never by
position. Files are written whole or not at all; one that cannot be read counts as absent, and its texts are scored
again. So are texts without a score: the next attempt may find one. No file holds any text.
"""

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from reticent._files import atomic_write
from reticent.auditing.inputs.signals import ScoreTable
from reticent.errors import StorageError
from reticent.models.token_signals import split_signals
from reticent.protocols import Scorer, TokenSignals
from reticent.text.corpus import text_hash

_TEXTS_A_FILE = 128
_TEXTS_A_FILE_FROM_A_SERVER = 32
_DAMAGED = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)
"""What reading a truncated, altered or foreign file raises."""


class SignalCache:
    """The signals that any number of scorers gave, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, fingerprint: str) -> dict[str, TokenSignals]:
        """Everything a scorer has said so far, by text hash."""
        found: dict[str, TokenSignals] = {}
        for path in sorted(self._folder_of(fingerprint).glob("*.npz")):
            found |= _read(path, fingerprint)
        return found

    def write(self, fingerprint: str, rows: Mapping[str, TokenSignals]) -> None:
        """Add what a scorer said of some texts, durably.

        Raises:
            StorageError: it cannot be written; what was there stays.
        """
        folder = self._folder_of(fingerprint)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {folder}: {error.strerror or error}") from error
        taken = [int(path.stem) for path in folder.glob("*.npz") if path.stem.isdecimal()]
        path = folder / f"{max(taken, default=0) + 1:06d}.npz"
        atomic_write(path, lambda scratch: _write(scratch, fingerprint, rows))

    def _folder_of(self, fingerprint: str) -> Path:
        return self._folder / fingerprint


def cached_signals(
    scorer: Scorer,
    texts: Sequence[str],
    cache: SignalCache | None = None,
    progress: Callable[[int], None] | None = None,
) -> ScoreTable:
    """Score texts, each distinct one once, and only those that the cache does not hold.

    Args:
        scorer: the model.
        texts: the texts; the table is in order of their first occurrence.
        cache: what is known already, and where new signals are kept as soon as they are computed; None to keep nothing.
        progress: called with the number of texts that have just become known, at first with those in the cache.

    Raises:
        StorageError: the cache cannot be written.
    """
    distinct = {text_hash(text): text for text in texts}
    held = {} if cache is None else cache.read(scorer.fingerprint)
    known: dict[str, TokenSignals | None] = {name: held[name] for name in distinct if name in held}
    _report(progress, len(known))
    missing = [name for name in distinct if name not in known]
    if scorer.is_white_box:
        # Texts of like length together, so that the model's batches hold little padding.
        missing.sort(key=lambda name: len(distinct[name]))
    at_once = _TEXTS_A_FILE if scorer.is_white_box else min(_TEXTS_A_FILE, _TEXTS_A_FILE_FROM_A_SERVER)
    for start in range(0, len(missing), at_once):
        names = missing[start : start + at_once]
        rows = dict(zip(names, scorer.score([distinct[name] for name in names]), strict=True))
        known |= rows
        scored = {name: signals for name, signals in rows.items() if signals is not None}
        if cache is not None and scored:
            cache.write(scorer.fingerprint, scored)
        _report(progress, len(rows))
    return ScoreTable(tuple(distinct), tuple(known[name] for name in distinct))


def _report(progress: Callable[[int], None] | None, num_texts: int) -> None:
    if progress is not None and num_texts:
        progress(num_texts)


def _write(path: Path, fingerprint: str, rows: Mapping[str, TokenSignals]) -> None:
    with path.open("wb") as file:
        np.savez(
            file,
            fingerprint=np.array(fingerprint),
            hashes=np.array(list(rows), dtype=np.str_),
            counts=np.array([signals.num_tokens for signals in rows.values()], dtype=np.int64),
            logp=np.concatenate([signals.logp for signals in rows.values()]),
            mu=np.concatenate([signals.mu for signals in rows.values()]),
            sigma2=np.concatenate([signals.sigma2 for signals in rows.values()]),
            entropy=np.concatenate([signals.entropy for signals in rows.values()]),
            rank=np.concatenate([signals.rank for signals in rows.values()]),
        )


def _read(path: Path, fingerprint: str) -> dict[str, TokenSignals]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if str(arrays["fingerprint"]) != fingerprint:
                return {}
            whole = TokenSignals(*(arrays[name] for name in ("logp", "mu", "sigma2", "entropy", "rank")))
            hashes, counts = arrays["hashes"].tolist(), arrays["counts"].tolist()
    except _DAMAGED:
        return {}
    if len(hashes) != len(counts) or sum(counts) != whole.num_tokens:
        return {}
    parts = split_signals(whole, counts)
    return {name: part for name, part in zip(hashes, parts, strict=True) if part is not None}
