import base64
import pickle
import stat

import pytest

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger.keys import Keyring, StateKey

MATERIAL = bytes(range(200, 232))


def with_urlsafe(text):
    return text.replace("+", "-").replace("/", "_")


@pytest.mark.parametrize(
    "text",
    [
        MATERIAL.hex(),
        MATERIAL.hex().upper() + "\n",
        base64.b64encode(MATERIAL).decode(),
        base64.b64encode(MATERIAL).decode().rstrip("="),
        with_urlsafe(base64.b64encode(MATERIAL).decode()),
    ],
)
def test_every_spelling_of_a_key_is_the_same_key(text):
    sealed = StateKey(MATERIAL).seal(b"state", b"run")
    assert StateKey.parse(text, "here").unseal(sealed, b"run") == b"state"


@pytest.mark.parametrize("text", ["", "SECRET-but-short", "g" * 64, "ab" * 31, "é" * 43, "A" * 42, "A" * 43 + "!"])
def test_a_malformed_key_is_refused_and_never_repeated(text):
    with pytest.raises(DeploymentStateError, match="64 hexadecimal") as caught:
        StateKey.parse(text, "the environment variable RETICENT_KEY")
    assert not text or text not in str(caught.value)
    assert caught.value.__context__ is None


def test_sealing_the_same_state_twice_gives_unrelated_bytes_of_one_length():
    key = StateKey(MATERIAL)
    first, second = key.seal(b"x" * 40, b""), key.seal(b"x" * 40, b"")
    assert len(first) == len(second) == 40 + 60
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10


def test_any_altered_byte_key_or_association_is_refused():
    key = StateKey(MATERIAL)
    sealed = key.seal(b"a secret state", b"run 1")
    for position in range(len(sealed)):
        altered = bytearray(sealed)
        altered[position] ^= 1
        with pytest.raises(DeploymentStateError):
            key.unseal(bytes(altered), b"run 1")
    for cut in range(len(sealed)):
        with pytest.raises(DeploymentStateError):
            key.unseal(sealed[:cut], b"run 1")
    with pytest.raises(DeploymentStateError):
        key.unseal(sealed, b"run 2")
    with pytest.raises(DeploymentStateError):
        StateKey.fresh().unseal(sealed, b"run 1")


def test_a_key_does_not_show_itself():
    key = StateKey(MATERIAL)
    for text in (repr(key), str(key), f"{key}", f"{[key]}"):
        assert MATERIAL.hex()[:8] not in text
        assert str(MATERIAL[0]) not in text
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_a_key_file_is_for_its_owner_alone_and_never_overwritten(tmp_path):
    keyring = Keyring(tmp_path / "config" / "keys", {})
    key = keyring.create("abc")
    path = keyring.key_path("abc")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert keyring.load("abc").unseal(key.seal(b"s", b""), b"") == b"s"
    with pytest.raises(DeploymentStateError, match="exists already"):
        keyring.create("abc")
    keyring.remove("abc")
    keyring.remove("abc")
    with pytest.raises(DeploymentStateError, match=r"RETICENT_KEY is not set and .*abc\.key does not exist"):
        keyring.load("abc")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610])
def test_a_key_file_that_others_can_touch_is_refused_with_the_remedy(tmp_path, mode):
    keyring = Keyring(tmp_path, {})
    keyring.create("abc")
    keyring.key_path("abc").chmod(mode)
    with pytest.raises(DeploymentStateError, match="chmod 600"):
        keyring.load("abc")


def test_a_malformed_key_file_is_named(tmp_path):
    keyring = Keyring(tmp_path, {})
    keyring.create("abc")
    keyring.key_path("abc").write_bytes(b"\xff\xfe nonsense")
    with pytest.raises(DeploymentStateError, match=r"abc\.key does not hold a key"):
        keyring.load("abc")


def test_the_environment_goes_before_any_file(tmp_path):
    environment = {"RETICENT_KEY": MATERIAL.hex()}
    keyring = Keyring(tmp_path / "keys", environment)
    sealed = keyring.create("abc").seal(b"s", b"")
    assert not keyring.key_path("abc").exists()
    assert keyring.load("another").unseal(sealed, b"") == b"s"
    for malformed in ("", "zz"):
        with pytest.raises(DeploymentStateError, match="variable RETICENT_KEY"):
            Keyring(tmp_path, {"RETICENT_KEY": malformed}).load("abc")


def test_the_users_keyring_follows_xdg(tmp_path, monkeypatch):
    assert Keyring.of_user({"XDG_CONFIG_HOME": str(tmp_path)}).folder == tmp_path / "reticent" / "keys"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Keyring.of_user({}).folder == tmp_path / ".config" / "reticent" / "keys"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="XDG_CONFIG_HOME"):
        Keyring(tmp_path / "file" / "keys", {}).create("abc")
