"""A deployment's secret, posterior and account in one sealed file of its run directory.

Guarantee. When a commit returns, the new state and the mark are durable; when it raises, or the process dies inside it,
the old state or the new one stands, never a part of either. A caller that commits before it shows a token can therefore
lose a token, never a charge or a posterior update. One process at a time holds a deployment. A state that was altered,
that is older than the last release, or whose file was deleted is refused: a posterior that goes back while the secret
stays voids the guarantee.

Two files carry this, and both must outlive a crash:

- `deployment.sealed` in the run directory: a clear header (schema, deployment, run), then the sealed state. Its size
  depends on the number of worlds alone.
- `<deployment>.mark` beside the key: how many tokens had been released when the last commit ended. It travels apart
  from the run directory, so restoring an older copy of the one does not restore the other.

| crash or failure | what stands | why it is safe |
|---|---|---|
| before the state file is replaced | state n, mark n | token n + 1 was not shown |
| between the state file and the mark | state n + 1, mark n | counted, not shown; a state ahead of its mark opens |
| after the mark | state n + 1, mark n + 1 | counted, perhaps shown |

Copies of the key and of both files on a second machine cannot be told from the original: one deployment, one place.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from reticent._files import atomic_write_bytes, fsync_directory
from reticent.errors import DeploymentStateError, InvalidValueError, StorageError
from reticent.ledger.secret import Keyring, StateKey
from reticent.pac.curator import CuratorState, ReleaseRecord
from reticent.randomness import NoiseSource

STATE_NAME: Final = "deployment.sealed"
LOCK_NAME: Final = "deployment.lock"
SCHEMA_VERSION: Final = 1

_LARGEST_BUDGET: Final = 2.0**63
_MAGIC: Final = b"RETICENT"
_HEADER: Final = struct.Struct(">8sH16s32s")
# secret, tokens released, dissenting steps, spent units, whether there is a cap, cap units
_COUNTS: Final = struct.Struct(">QQQ16s?16s")
_POSTERIOR_TYPE: Final = np.dtype(">f8")


@dataclass(frozen=True)
class _Header:
    """The clear part of the file; all of it is authenticated with the state."""

    schema: int
    deployment_id: str
    run_digest: bytes

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        if len(content) < _HEADER.size or not content.startswith(_MAGIC):
            raise _damaged(path)
        _, schema, deployment, run_digest = _HEADER.unpack_from(content)
        return cls(schema, deployment.hex(), run_digest)

    def to_bytes(self) -> bytes:
        return _HEADER.pack(_MAGIC, self.schema, bytes.fromhex(self.deployment_id), self.run_digest)


class SealedStateStore:
    """The `ReleaseStore` of a deployment that one process serves; holds the deployment's lock until closed.

    Use `create` or `open`, and close it, best with `with`.
    """

    def __init__(self, run_dir: Path, header: _Header, key: StateKey, keyring: Keyring, lock: int) -> None:
        self._path = run_dir / STATE_NAME
        self._header = header
        self._key = key
        self._mark = keyring.mark_path(header.deployment_id)
        self._lock: int | None = lock
        self._tokens_committed = 0

    @classmethod
    def create(
        cls,
        run_dir: Path,
        run_id: str,
        num_worlds: int,
        keyring: Keyring,
        noise: NoiseSource,
        total_budget: float | None = None,
    ) -> tuple[Self, CuratorState]:
        """Draw the secret, start from the uniform posterior, and write both.

        Args:
            run_dir: an existing run directory without a deployment.
            run_id: the hash of its manifest; the state opens with this run only.
            num_worlds: m, even.
            keyring: provides the key, and keeps the mark.
            noise: draws the secret; a secure source, such as `SystemNoise`.
            total_budget: B, the cap over the deployment's life in nats, at most 2^63; None for no cap.

        Raises:
            InvalidValueError: the source can be replayed, or a number is out of range.
            DeploymentStateError: the run has a deployment, or had one whose state was deleted, or another process
                holds it.
            StorageError: something cannot be written.
        """
        if noise.is_secure is not True:
            raise InvalidValueError(
                f"{type(noise).__name__} would reveal the secret to whoever replays it; use SystemNoise"
            )
        if total_budget is not None and not total_budget <= _LARGEST_BUDGET:
            raise InvalidValueError(f"total_budget must be at most {_LARGEST_BUDGET} nats, got {total_budget!r}")
        state = CuratorState.initial(num_worlds, noise, total_budget)
        with contextlib.ExitStack() as undo:
            lock = _acquire_lock(run_dir)
            undo.callback(os.close, lock)
            _require_undeployed(run_dir, lock)
            deployment_id = secrets.token_hex(16)
            header = _Header(SCHEMA_VERSION, deployment_id, _run_digest(run_id))
            undo.callback(keyring.remove, deployment_id)
            undo.callback((run_dir / STATE_NAME).unlink, missing_ok=True)
            key = keyring.create(deployment_id)
            store = cls(run_dir, header, key, keyring, lock)
            store._write_mark(state)
            store._write_state(state)
            os.pwrite(lock, deployment_id.encode(), 0)
            undo.pop_all()
        return store, state

    @classmethod
    def open(cls, run_dir: Path, run_id: str, keyring: Keyring) -> tuple[Self, CuratorState]:
        """Continue a deployment from its last committed state.

        Raises:
            DeploymentStateError: no state, another run's, damaged, older than the last release, from a newer schema,
                no key or the wrong one, or another process holds the deployment.
        """
        with contextlib.ExitStack() as undo:
            _read_file(run_dir / STATE_NAME)
            lock = _acquire_lock(run_dir)
            undo.callback(os.close, lock)
            header, key, state = _load(run_dir, run_id, keyring)
            for leftover in run_dir.glob(f".{STATE_NAME}.*.tmp"):
                leftover.unlink(missing_ok=True)
            store = cls(run_dir, header, key, keyring, lock)
            store._tokens_committed = state.tokens_released
            os.pwrite(lock, header.deployment_id.encode(), 0)
            undo.pop_all()
        return store, state

    def commit(self, state: CuratorState, records: Sequence[ReleaseRecord]) -> None:
        """Make releases durable; only after this may their tokens be shown. The sealed file keeps no records.

        Raises:
            DeploymentStateError: the store is closed, or the state does not follow the last one committed.
            StorageError: it cannot be written; the release must not be shown.
        """
        if self._lock is None:
            raise DeploymentStateError(f"the state store of {self._path.parent} is closed; nothing can be released")
        if state.tokens_released <= self._tokens_committed:
            raise DeploymentStateError(
                f"a commit must follow the last one: {self._tokens_committed} tokens are committed, "
                f"got a state after {state.tokens_released}; a deployment has one curator"
            )
        self._write_state(state)
        self._write_mark(state)
        self._tokens_committed = state.tokens_released

    def reconcile(self, state: CuratorState) -> CuratorState:
        """The state in the file, which may be the one after `state`."""
        return _unpack(self._key.unseal(_read_file(self._path)[_HEADER.size :], self._header.to_bytes()))

    def close(self) -> None:
        """Let go of the deployment; harmless when repeated."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SealedStateStore({str(self._path)!r})"

    def _write_state(self, state: CuratorState) -> None:
        header = self._header.to_bytes()
        atomic_write_bytes(self._path, header + self._key.seal(_pack(state), header))

    def _write_mark(self, state: CuratorState) -> None:
        atomic_write_bytes(self._mark, b"%d\n" % state.tokens_released)


def has_state(run_dir: Path) -> bool:
    """Whether the run directory holds a deployment's state."""
    return (run_dir / STATE_NAME).exists()


def read_state(run_dir: Path, run_id: str, keyring: Keyring) -> CuratorState:
    """The last committed state, without the lock: also while another process serves the deployment.

    Raises:
        DeploymentStateError: as for `SealedStateStore.open`.
    """
    return _load(run_dir, run_id, keyring)[2]


def void_state(run_dir: Path, keyring: Keyring) -> None:
    """Delete a deployment's state, mark and key file, so that not even a copy of the state can be continued.

    This ends the guarantee of that deployment. Works on damaged states too.

    Raises:
        DeploymentStateError: there is no deployment, or another process holds it.
        StorageError: something cannot be deleted.
    """
    if not has_state(run_dir) and not (run_dir / LOCK_NAME).exists():
        raise DeploymentStateError(f"{run_dir} has no deployment state; there is nothing to reset")
    lock = _acquire_lock(run_dir)
    try:
        path = run_dir / STATE_NAME
        known_ids = {_locked_deployment(lock)}
        if path.exists():
            with contextlib.suppress(DeploymentStateError):
                known_ids.add(_Header.parse(_read_file(path), path).deployment_id)
        path.unlink(missing_ok=True)
        fsync_directory(run_dir)
        for deployment_id in known_ids - {""}:
            keyring.remove(deployment_id)
        os.ftruncate(lock, 0)
    except OSError as error:
        raise StorageError(f"cannot delete {error.filename or run_dir}: {error.strerror}") from error
    finally:
        os.close(lock)


def _load(run_dir: Path, run_id: str, keyring: Keyring) -> tuple[_Header, StateKey, CuratorState]:
    path = run_dir / STATE_NAME
    header = _Header.parse(_read_file(path), path)
    if header.schema > SCHEMA_VERSION:
        raise DeploymentStateError(
            f"{path} has schema version {header.schema}, this release reads up to {SCHEMA_VERSION}; upgrade reticent"
        )
    if header.run_digest != _run_digest(run_id):
        raise DeploymentStateError(
            f"{path} belongs to run {header.run_digest.hex()[:16]}, not to run {_run_digest(run_id).hex()[:16]} found "
            "here; put it back beside the worlds it was made for"
        )
    key = keyring.load(header.deployment_id)
    # The mark first: a commit in between moves the state ahead of it, never behind.
    mark = _read_mark(keyring.mark_path(header.deployment_id))
    content = _read_file(path)
    prefix = header.to_bytes()
    if not content.startswith(prefix):
        raise _damaged(path)
    try:
        state = _unpack(key.unseal(content[len(prefix) :], prefix))
    except DeploymentStateError:
        raise _damaged(path) from None
    if state.tokens_released < mark:
        raise DeploymentStateError(
            f"{path} was made after {state.tokens_released} released tokens, but {mark} have been released; it is an "
            "old copy, and continuing from it would void the guarantee. Put the latest state back, or reset with "
            "`reticent state reset`"
        )
    return header, key, state


def _damaged(path: Path) -> DeploymentStateError:
    return DeploymentStateError(
        f"{path} cannot be opened: the key is not the one it was sealed with, or the file was altered. "
        "Restore the key and the file; nothing is released until both fit"
    )


def _pack(state: CuratorState) -> bytes:
    counts = _COUNTS.pack(
        state.secret,
        state.tokens_released,
        state.dissenting_steps,
        state.spent_units.to_bytes(16, "big"),
        state.cap_units is not None,
        (state.cap_units or 0).to_bytes(16, "big"),
    )
    return counts + state.log_posterior.astype(_POSTERIOR_TYPE).tobytes()


def _unpack(plaintext: bytes) -> CuratorState:
    secret, tokens_released, dissenting_steps, spent, has_cap, cap = _COUNTS.unpack_from(plaintext)
    return CuratorState(
        secret=secret,
        log_posterior=np.frombuffer(plaintext, _POSTERIOR_TYPE, offset=_COUNTS.size).astype(np.float64),
        spent_units=int.from_bytes(spent, "big"),
        cap_units=int.from_bytes(cap, "big") if has_cap else None,
        tokens_released=tokens_released,
        dissenting_steps=dissenting_steps,
    )


def _run_digest(run_id: str) -> bytes:
    return hashlib.sha256(run_id.encode()).digest()


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DeploymentStateError(
            f"there is no deployment state at {path}; `reticent generate` creates it for a run that never had one"
        ) from None
    except OSError as error:
        raise DeploymentStateError(f"cannot read {path}: {error.strerror}") from error


def _read_mark(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise DeploymentStateError(
            f"cannot read {path}, which says how many tokens this deployment has released: {error.strerror}. "
            "It must be kept with the key; put it back, or reset with `reticent state reset`"
        ) from error
    if not text.isdecimal():
        raise DeploymentStateError(f"{path} is damaged; put it back, or reset with `reticent state reset`")
    return int(text)


def _acquire_lock(run_dir: Path) -> int:
    path = run_dir / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"cannot open the lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise DeploymentStateError(
            f"another process is using the deployment in {run_dir}; wait until it ends or stop it: "
            "a deployment has one writer"
        ) from None
    return descriptor


def _locked_deployment(lock: int) -> str:
    """The deployment id the lock file remembers, or "" where none was created yet."""
    text = os.pread(lock, 32, 0).decode("ascii", errors="replace")
    return text if len(text) == 32 and all(digit in "0123456789abcdef" for digit in text) else ""


def _require_undeployed(run_dir: Path, lock: int) -> None:
    if has_state(run_dir):
        raise DeploymentStateError(f"{run_dir} has a deployment already; open it instead of creating one")
    if _locked_deployment(lock):
        raise DeploymentStateError(
            f"{run_dir / STATE_NAME} was deleted; restore it, or give the deployment up with `reticent state reset`, "
            "which says what that voids"
        )
