import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from reticent.errors import DeploymentStateError, InvalidValueError, StorageError
from reticent.ledger import sealed_file
from reticent.ledger.sealed_file import SealedStateStore, has_state, read_state, void_state
from reticent.ledger.secret import Keyring
from reticent.pac.accounting import cap_units, charge_units
from reticent.pac.curator import Curator, CuratorState, ReleaseRecord
from reticent.randomness import SeededNoise, SystemNoise

RECORD = ReleaseRecord(step=0, request="r", coin_key=None, num_active=2, charge_units=1)
MESSAGE_FOR_ANY_DAMAGE = "the key is not the one it was sealed with, or the file was altered"


class ChosenSecret(SystemNoise):
    """The operating system's noise, with a secret the test knows."""

    def __init__(self, secret):
        self.secret = secret

    def secret_index(self, num_worlds):
        return self.secret


@pytest.fixture
def keyring(tmp_path):
    return Keyring(tmp_path / "keys", {})


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def deploy(run_dir, keyring, secret=3, num_worlds=8, **options):
    store, state = SealedStateStore.create(run_dir, "run", num_worlds, keyring, ChosenSecret(secret), **options)
    store.close()
    return state


def after(state, tokens=1):
    generator = np.random.default_rng(state.tokens_released)
    return CuratorState(
        secret=state.secret,
        log_posterior=generator.normal(size=state.log_posterior.size) * 10.0 ** generator.integers(-9, 9),
        spent_units=state.spent_units + 3**50,
        cap_units=state.cap_units,
        tokens_released=state.tokens_released + tokens,
        dissenting_steps=state.dissenting_steps + 1,
    )


def assert_same(left, right):
    assert left.log_posterior.dtype == np.float64
    assert left.log_posterior.tobytes() == right.log_posterior.tobytes()
    for name in ("secret", "spent_units", "cap_units", "tokens_released", "dissenting_steps"):
        assert getattr(left, name) == getattr(right, name)
        assert type(getattr(left, name)) is type(getattr(right, name))


@pytest.mark.parametrize("total_budget", [None, 0.25, 2.0**63])
def test_a_new_deployment_starts_uniform_and_reopens_as_it_was(run_dir, keyring, total_budget):
    assert not has_state(run_dir)
    created = deploy(run_dir, keyring, total_budget=total_budget)
    assert created.secret == 3
    np.testing.assert_allclose(np.exp(created.log_posterior), 1 / 8)
    assert created.cap_units == (None if total_budget is None else cap_units(total_budget))
    assert has_state(run_dir)
    store, opened = SealedStateStore.open(run_dir, "run", keyring)
    store.close()
    assert_same(opened, created)


def test_every_commit_round_trips_bit_exactly(run_dir, keyring):
    state = deploy(run_dir, keyring, total_budget=1e9)
    store, _ = SealedStateStore.open(run_dir, "run", keyring)
    with store:
        for _ in range(5):
            state = after(state)
            store.commit(state, RECORD)
            assert_same(read_state(run_dir, "run", keyring), state)
    assert (run_dir / "deployment.sealed").stat().st_mode & 0o077 == 0


def test_the_secret_is_drawn_over_all_worlds(tmp_path, keyring):
    drawn = set()
    for attempt in range(40):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        store, state = SealedStateStore.create(folder, "run", 2, keyring, SystemNoise())
        store.close()
        drawn.add(state.secret)
    assert drawn == {0, 1}


def test_a_seeded_source_and_a_huge_budget_are_refused(run_dir, keyring):
    with pytest.raises(InvalidValueError, match="SystemNoise"):
        SealedStateStore.create(run_dir, "run", 8, keyring, SeededNoise(0))
    for budget in (2.0**64, float("nan"), 0.0):
        with pytest.raises(InvalidValueError, match=r"total.budget"):
            SealedStateStore.create(run_dir, "run", 8, keyring, SystemNoise(), budget)
    with pytest.raises(InvalidValueError, match="even"):
        SealedStateStore.create(run_dir, "run", 7, keyring, SystemNoise())
    assert not has_state(run_dir)


def test_nothing_outside_the_seal_depends_on_the_secret(tmp_path):
    shapes = set()
    for secret in range(8):
        folder, keyring = tmp_path / f"run{secret}", Keyring(tmp_path / f"keys{secret}", {})
        folder.mkdir()
        state = deploy(folder, keyring, secret)
        store, _ = SealedStateStore.open(folder, "run", keyring)
        with store:
            store.commit(after(state), RECORD)
            text = repr(store)
        deployment = next(keyring.folder.glob("*.key")).stem
        files = sorted(
            (path.relative_to(tmp_path).parts[-1].replace(deployment, "ID"), path.stat().st_size)
            for base in (folder, keyring.folder)
            for path in base.iterdir()
        )
        shapes.add((tuple(files), text.replace(f"run{secret}", "RUN")))
    assert len(shapes) == 1


def test_any_altered_byte_is_refused(run_dir, keyring):
    deploy(run_dir, keyring, num_worlds=2)
    path = run_dir / "deployment.sealed"
    content = path.read_bytes()
    for position in range(len(content)):
        altered = bytearray(content)
        altered[position] ^= 0x10
        path.write_bytes(bytes(altered))
        with pytest.raises(DeploymentStateError):
            read_state(run_dir, "run", keyring)
    for cut in range(0, len(content), 7):
        path.write_bytes(content[:cut])
        with pytest.raises(DeploymentStateError, match=MESSAGE_FOR_ANY_DAMAGE):
            read_state(run_dir, "run", keyring)
    path.write_bytes(content)
    read_state(run_dir, "run", keyring)


def test_the_wrong_key_says_the_same_as_a_damaged_file(run_dir, keyring):
    deploy(run_dir, keyring)
    with pytest.raises(DeploymentStateError, match=MESSAGE_FOR_ANY_DAMAGE) as caught:
        SealedStateStore.open(run_dir, "run", Keyring(keyring.folder, {"RETICENT_KEY": "00" * 32}))
    assert caught.value.__cause__ is None
    store, _ = SealedStateStore.open(run_dir, "run", keyring)  # a failed opening leaves no lock behind
    store.close()


def test_another_runs_state_is_refused_even_with_one_key_for_all(tmp_path):
    keyring = Keyring(tmp_path / "keys", {"RETICENT_KEY": "5a" * 32})
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        store, _ = SealedStateStore.create(folder, folder.name, 8, keyring, SystemNoise())
        store.close()
    sealed = (folders[0] / "deployment.sealed").read_bytes()
    (folders[1] / "deployment.sealed").write_bytes(sealed)
    with pytest.raises(DeploymentStateError, match="belongs to run"):
        SealedStateStore.open(folders[1], "b", keyring)
    # Writing the other run into the clear header does not help: the header is authenticated.
    header = sealed_file._Header.parse(sealed, folders[1])
    forged = sealed_file._Header(header.schema, header.deployment_id, sealed_file._run_digest("b")).to_bytes()
    (folders[1] / "deployment.sealed").write_bytes(forged + sealed[len(forged) :])
    with pytest.raises(DeploymentStateError, match=MESSAGE_FOR_ANY_DAMAGE):
        SealedStateStore.open(folders[1], "b", keyring)


def test_a_newer_schema_is_named(run_dir, keyring, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sealed_file, "SCHEMA_VERSION", 2)
        deploy(run_dir, keyring)
    with pytest.raises(DeploymentStateError, match=r"schema version 2.*upgrade"):
        SealedStateStore.open(run_dir, "run", keyring)


def test_a_missing_state_and_a_missing_key_are_named(run_dir, keyring):
    with pytest.raises(DeploymentStateError, match="no deployment state"):
        SealedStateStore.open(run_dir, "run", keyring)
    deploy(run_dir, keyring)
    next(keyring.folder.glob("*.key")).unlink()
    with pytest.raises(DeploymentStateError, match="restore the key"):
        SealedStateStore.open(run_dir, "run", keyring)


def test_an_older_copy_is_refused_and_the_latest_is_not(run_dir, keyring):
    state = deploy(run_dir, keyring)
    path = run_dir / "deployment.sealed"
    copies = [path.read_bytes()]
    store, _ = SealedStateStore.open(run_dir, "run", keyring)
    with store:
        for _ in range(2):
            state = after(state)
            store.commit(state, RECORD)
            copies.append(path.read_bytes())
    for tokens, copy in enumerate(copies[:-1]):
        path.write_bytes(copy)
        with pytest.raises(DeploymentStateError, match=f"after {tokens} released tokens, but 2 have been"):
            SealedStateStore.open(run_dir, "run", keyring)
    path.write_bytes(copies[-1])
    assert_same(read_state(run_dir, "run", keyring), state)


@pytest.mark.parametrize("damage", [None, b"", b"-1", b"two", b"\xff"])
def test_a_lost_or_damaged_mark_is_refused(run_dir, keyring, damage):
    deploy(run_dir, keyring)
    mark = next(keyring.folder.glob("*.mark"))
    mark.unlink() if damage is None else mark.write_bytes(damage)
    with pytest.raises(DeploymentStateError, match=r"\.mark"):
        SealedStateStore.open(run_dir, "run", keyring)


def test_a_state_ahead_of_its_mark_opens(run_dir, keyring, monkeypatch):
    state = after(deploy(run_dir, keyring))
    store, _ = SealedStateStore.open(run_dir, "run", keyring)
    monkeypatch.setattr(SealedStateStore, "_write_mark", lambda *_: (_ for _ in ()).throw(StorageError("disk full")))
    with store, pytest.raises(StorageError):
        store.commit(state, RECORD)
    assert_same(read_state(run_dir, "run", keyring), state)


def test_a_full_disk_leaves_the_old_state_and_the_store_usable(run_dir, keyring, monkeypatch):
    created = deploy(run_dir, keyring)
    store, _ = SealedStateStore.open(run_dir, "run", keyring)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    with store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", no_space)
            with pytest.raises(StorageError, match=r"deployment\.sealed.*No space left.*free some space"):
                store.commit(after(created), RECORD)
        assert_same(read_state(run_dir, "run", keyring), created)
        assert not list(run_dir.glob(".*.tmp"))
        store.commit(after(created), RECORD)
    assert_same(read_state(run_dir, "run", keyring), after(created))


def test_a_creation_that_fails_leaves_nothing_that_blocks_the_next(run_dir, keyring, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SealedStateStore, "_write_state", lambda *_: (_ for _ in ()).throw(StorageError("disk full")))
        with pytest.raises(StorageError):
            deploy(run_dir, keyring)
    assert not list(keyring.folder.iterdir())
    deploy(run_dir, keyring)


def test_a_commit_follows_the_last_and_ends_with_the_store(run_dir, keyring):
    created = deploy(run_dir, keyring)
    store, _ = SealedStateStore.open(run_dir, "run", keyring)
    with store:
        store.commit(after(created, tokens=3), RECORD)
        with pytest.raises(DeploymentStateError, match="must follow"):
            store.commit(after(created, tokens=3), RECORD)
    with pytest.raises(DeploymentStateError, match="closed"):
        store.commit(after(created, tokens=4), RECORD)
    store.close()


def test_a_second_process_is_turned_away_and_may_still_look(run_dir, keyring):
    state = deploy(run_dir, keyring)
    script = (
        "import fcntl, sys, time\nlock = open(sys.argv[1], 'r+')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, run_dir / "deployment.lock"], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        for attempt in (
            lambda: SealedStateStore.open(run_dir, "run", keyring),
            lambda: SealedStateStore.create(run_dir, "run", 8, keyring, SystemNoise()),
            lambda: void_state(run_dir, keyring),
        ):
            with pytest.raises(DeploymentStateError, match="another process"):
                attempt()
        assert_same(read_state(run_dir, "run", keyring), state)
        other.kill()
    store, _ = SealedStateStore.open(run_dir, "run", keyring)
    with store, (run_dir / "deployment.lock").open() as handle, pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_deployment_is_created_once_and_a_deleted_state_is_noticed(run_dir, keyring):
    deploy(run_dir, keyring)
    with pytest.raises(DeploymentStateError, match="has a deployment already"):
        deploy(run_dir, keyring)
    (run_dir / "deployment.sealed").unlink()
    with pytest.raises(DeploymentStateError, match=r"was deleted.*state reset"):
        deploy(run_dir, keyring)
    void_state(run_dir, keyring)
    deploy(run_dir, keyring)


@pytest.mark.parametrize("damaged", [False, True])
def test_voiding_leaves_nothing_to_continue_from(run_dir, keyring, damaged):
    deploy(run_dir, keyring)
    path = run_dir / "deployment.sealed"
    copy = path.read_bytes()
    if damaged:
        path.write_bytes(b"garbage")
    void_state(run_dir, keyring)
    assert not path.exists()
    assert not list(keyring.folder.iterdir())
    deploy(run_dir, keyring)
    path.write_bytes(copy)
    with pytest.raises(DeploymentStateError):
        SealedStateStore.open(run_dir, "run", keyring)


def test_there_is_nothing_to_void_without_a_deployment(run_dir, keyring):
    with pytest.raises(DeploymentStateError, match="nothing to reset"):
        void_state(run_dir, keyring)
    assert not list(run_dir.iterdir())


def test_no_token_that_was_shown_is_lost_when_the_process_is_killed(run_dir, keyring):
    deploy(run_dir, keyring, num_worlds=8)
    script = Path(__file__).with_name("release_until_killed.py")
    delays = random.Random(8)
    shown = 0
    for _ in range(10):
        with subprocess.Popen([sys.executable, script, run_dir, keyring.folder], stdout=subprocess.PIPE) as process:
            assert process.stdout.read(1) == b"."
            time.sleep(delays.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
            shown += 1 + len(process.stdout.read())
        state = read_state(run_dir, "run", keyring)
        assert shown <= state.tokens_released <= shown + 1
        # Whatever was counted without being shown is never given back.
        shown = state.tokens_released
        assert state.spent_units == shown * charge_units(2.0**-8)
        assert state.dissenting_steps == shown
    store, state = SealedStateStore.open(run_dir, "run", keyring)
    with store:
        assert not list(run_dir.glob(".*.tmp"))
        Curator(state, store, SystemNoise()).release(np.zeros(8, np.int64), 2.0**-8, request="r", step=0)
