"""The key that seals a deployment's secret, and where it is kept.

Guarantee: no method, message or representation here shows key material, and nothing sealed can be read or altered
without the key. A deployment's key is the environment variable RETICENT_KEY where that is set (64 hexadecimal digits,
or base64 of 32 bytes), otherwise a file of its own that only its owner can read.

Sealing is AES-256-GCM under a key derived for each message: HKDF-SHA256 of the deployment's key with a fresh 256-bit
salt. One state is sealed per released token, and a deployment may release many millions; under a single key, random
96-bit nonces would come within reach of the 2^32-message limit (NIST SP 800-38D, section 8.3), and a nonce that
repeats breaks GCM altogether. With 352 fresh random bits behind each message there is no such count to keep.
"""

import base64
import binascii
import os
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from reticent._files import fsync_directory
from reticent.errors import DeploymentStateError, StorageError

KEY_VARIABLE: Final = "RETICENT_KEY"
_KEY_BYTES: Final = 32
_SALT_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_DERIVATION_LABEL: Final = b"reticent sealed state v1"
_KEY_FORMAT: Final = "64 hexadecimal digits, or base64 of 32 bytes"


class StateKey:
    """A 256-bit key that seals and unseals; its representation shows nothing."""

    __slots__ = ("_material",)

    def __init__(self, material: bytes) -> None:
        if len(material) != _KEY_BYTES:
            raise DeploymentStateError(f"a key has {_KEY_BYTES} bytes, got {len(material)}")
        self._material = material

    @classmethod
    def fresh(cls) -> "StateKey":
        """Draw a key from the operating system."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def parse(cls, text: str, source: str) -> "StateKey":
        """Read a key as text.

        Args:
            text: 64 hexadecimal digits, or base64 (plain or URL-safe) of 32 bytes; white space around it is ignored.
            source: where the text came from, for the message.

        Raises:
            DeploymentStateError: the text is no key. The message never repeats it.
        """
        material = _decode(text.strip())
        if material is None:
            raise DeploymentStateError(f"{source} does not hold a key; it must be {_KEY_FORMAT}")
        return cls(material)

    def seal(self, plaintext: bytes, associated_data: bytes) -> bytes:
        """Encrypt and authenticate; the result is 60 bytes longer than the plaintext."""
        salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
        return salt + nonce + self._cipher(salt).encrypt(nonce, plaintext, associated_data)

    def unseal(self, sealed: bytes, associated_data: bytes) -> bytes:
        """Recover what `seal` was given.

        Raises:
            DeploymentStateError: the key, the associated data or the bytes are not those of the sealing. Which of
                them it was cannot be told apart, and is not said.
        """
        salt, nonce = sealed[:_SALT_BYTES], sealed[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES]
        try:
            return self._cipher(salt).decrypt(nonce, sealed[_SALT_BYTES + _NONCE_BYTES :], associated_data)
        except (InvalidTag, ValueError):
            # The cause stays out of the chain: one failure, one message.
            raise DeploymentStateError("the sealed bytes do not open with this key") from None

    def _cipher(self, salt: bytes) -> AESGCM:
        derivation = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=salt, info=_DERIVATION_LABEL)
        return AESGCM(derivation.derive(self._material))

    def __repr__(self) -> str:
        return "StateKey(hidden)"

    def __reduce__(self) -> str:
        raise TypeError("a StateKey cannot be pickled")


class Keyring:
    """Finds the key of a deployment, and the folder for what must not travel with the run directory.

    Args:
        folder: where key files lie, one `<deployment_id>.key` each.
        environment: consulted for RETICENT_KEY, which is then the key of every deployment.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = environment

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> "Keyring":
        """The user's keyring: `$XDG_CONFIG_HOME/reticent/keys`, by default `~/.config/reticent/keys`."""
        configured = environment.get("XDG_CONFIG_HOME")
        config_home = Path(configured) if configured else Path.home() / ".config"
        return cls(config_home / "reticent" / "keys", environment)

    def key_path(self, deployment_id: str) -> Path:
        """The path of the deployment's key file, if it has one."""
        return self.folder / f"{deployment_id}.key"

    def mark_path(self, deployment_id: str) -> Path:
        """The path of the deployment's high-water mark: its last release."""
        return self.folder / f"{deployment_id}.mark"

    def lock_path(self, deployment_id: str) -> Path:
        """The path of the lock file of the deployment's writer."""
        return self.folder / f"{deployment_id}.lock"

    def create(self, deployment_id: str) -> StateKey:
        """The key for a new deployment: RETICENT_KEY if set, else a fresh one in a new key file.

        Raises:
            DeploymentStateError: RETICENT_KEY is malformed, or the deployment has a key file already.
            StorageError: the key file cannot be written.
        """
        self.make_folder()
        from_environment = self._from_environment()
        if from_environment is not None:
            return from_environment
        key, path = StateKey.fresh(), self.key_path(deployment_id)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as handle:
                handle.write(key._material.hex() + "\n")
                handle.flush()
                os.fsync(handle.fileno())
            fsync_directory(self.folder)
        except FileExistsError:
            raise DeploymentStateError(f"{path} exists already; a new deployment never reuses a key file") from None
        except OSError as error:
            raise StorageError(f"cannot write the key file {path}: {error.strerror}") from error
        return key

    def load(self, deployment_id: str) -> StateKey:
        """The key of an existing deployment.

        Raises:
            DeploymentStateError: there is no key, others could read its file, or it is malformed.
        """
        from_environment = self._from_environment()
        if from_environment is not None:
            return from_environment
        path = self.key_path(deployment_id)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise DeploymentStateError(
                f"no key for this deployment: {KEY_VARIABLE} is not set and {path} does not exist; restore the key. "
                "Without it the state cannot be continued, only reset (`reticent state reset`)"
            ) from None
        except OSError as error:
            raise DeploymentStateError(f"cannot read the key file {path}: {error.strerror}") from error
        with os.fdopen(descriptor, encoding="ascii", errors="replace") as handle:
            if os.fstat(handle.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise DeploymentStateError(f"others can read the key file {path}; close it with `chmod 600 {path}`")
            return StateKey.parse(handle.read(), str(path))

    def remove(self, deployment_id: str) -> None:
        """Delete the files of a deployment whose creation failed, where they exist."""
        for path in (self.key_path(deployment_id), self.mark_path(deployment_id), self.lock_path(deployment_id)):
            path.unlink(missing_ok=True)

    def set_aside(self, deployment_id: str) -> list[Path]:
        """Rename the deployment's key file and mark, where they exist, so that nothing opens with them.

        The caller holds the deployment's lock, whose file is deleted.

        Returns:
            Where they are now.

        Raises:
            OSError: one cannot be renamed.
        """
        ending = time.strftime("reset-%Y%m%dT%H%M%SZ", time.gmtime())
        paths = [self.key_path(deployment_id), self.mark_path(deployment_id)]
        kept = [path.rename(path.with_name(f"{path.name}.{ending}")) for path in paths if path.exists()]
        self.lock_path(deployment_id).unlink(missing_ok=True)
        if kept:
            fsync_directory(self.folder)
        return kept

    def make_folder(self) -> None:
        """Create the folder, for its owner alone.

        Raises:
            StorageError: it cannot be created.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot create the key folder {self.folder}: {error.strerror}; set XDG_CONFIG_HOME to a folder "
                "you can write to"
            ) from error

    def _from_environment(self) -> StateKey | None:
        text = self._environment.get(KEY_VARIABLE)
        return None if text is None else StateKey.parse(text, f"the environment variable {KEY_VARIABLE}")


def _decode(text: str) -> bytes | None:
    """32 bytes from hexadecimal or base64, or None."""
    try:
        if len(text) == 2 * _KEY_BYTES:
            return binascii.unhexlify(text)
        unpadded = text.rstrip("=").replace("-", "+").replace("_", "/")
        material = base64.b64decode(unpadded + "=" * (-len(unpadded) % 4), validate=True)
    except ValueError:
        return None
    return material if len(material) == _KEY_BYTES else None
