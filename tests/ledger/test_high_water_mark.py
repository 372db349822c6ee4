import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger import high_water_mark as mark_module
from reticent.ledger.high_water_mark import LastRelease, Mark, read_mark


def released(tokens, way="the way"):
    """The last release of a chain that goes one way."""
    return LastRelease(tokens, hashlib.sha256(f"{way} {tokens}".encode()).digest())


def write_earlier_form(path, *tokens):
    """A mark of an earlier release: two lines of digits and their checksum."""
    digits = [b"%020d" % number for number in tokens]
    path.write_bytes(b"".join(b"%s %08x\n" % (part, zlib.crc32(part)) for part in digits))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "d.mark"


@pytest.fixture
def mark(path):
    mark = Mark.create(path, released(0).head)
    yield mark
    mark.close()


def test_a_mark_rises_and_is_found_again(path, mark):
    assert mark.last == read_mark(path) == released(0)
    for tokens in (1, 2, 9, 9, 10**15):
        mark.raise_to(released(tokens))
        assert read_mark(path) == mark.last == released(tokens)
    assert path.stat().st_mode & 0o077 == 0
    again = Mark.open(path)
    again.raise_to(released(10**15 + 1))
    again.close()
    assert read_mark(path) == released(10**15 + 1)


def test_a_mark_is_never_created_twice(path, mark):
    with pytest.raises(StorageError, match=r"d\.mark"):
        Mark.create(path, released(0).head)
    assert read_mark(path) == mark.last


@pytest.mark.parametrize("last", [released(6), released(7, "another way"), LastRelease(7, None)])
def test_a_mark_never_goes_down_and_never_changes_sides(path, mark, last):
    mark.raise_to(released(7))
    with pytest.raises(DeploymentStateError, match="cannot take its place"):
        mark.raise_to(last)
    assert read_mark(path) == released(7)


@given(moves=st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=12))
def test_of_two_writers_without_a_lock_the_one_behind_is_refused_and_the_mark_never_falls(tmp_path_factory, moves):
    """Each move raises the mark as one of two processes that both had it open; once they part, one goes on alone."""
    path = tmp_path_factory.mktemp("marks") / "d.mark"
    Mark.create(path, released(0).head).close()
    writers = [Mark.open(path), Mark.open(path)]
    tokens, highest, owner = [0, 0], 0, None
    for second, step in moves:
        who = int(second)
        last = released(tokens[who] + step, f"way {who}")
        if owner in (None, who):
            writers[who].raise_to(last)
            owner, tokens[who], highest = who, last.tokens, last.tokens
        else:
            with pytest.raises(DeploymentStateError, match="another one released from a copy"):
                writers[who].raise_to(last)
        assert read_mark(path).tokens == highest
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("reopen", [False, True])
def test_a_write_that_is_cut_short_leaves_the_mark_before_it(path, reopen, mark):
    mark.raise_to(released(7))
    before = path.read_bytes()
    writer = Mark.open(path) if reopen else mark
    writer.raise_to(released(12))
    after = path.read_bytes()
    [start, *_, end] = [index for index, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    for cut in range(start, end + 1):
        path.write_bytes(after[:cut] + before[cut:])
        assert read_mark(path) == released(7)
    path.write_bytes(after)
    assert read_mark(path) == released(12)


@pytest.mark.parametrize("damage", [None, b"", b"-1", b"two", b"\xff" * 200, b"%020d %08x\n" % (5, 1)])
def test_a_lost_or_damaged_mark_is_refused(path, damage):
    if damage is not None:
        path.write_bytes(damage)
    for attempt in (read_mark, Mark.open):
        with pytest.raises(DeploymentStateError, match=r"d\.mark"):
            attempt(path)


@pytest.mark.parametrize("how", ["deleted", "replaced", "damaged"])
def test_a_mark_that_was_changed_under_its_writer_is_not_written_on(path, mark, how):
    mark.raise_to(released(3))
    content = path.read_bytes()
    if how == "damaged":
        path.write_bytes(b"?" * len(content))
    else:
        path.unlink()
    if how == "replaced":
        path.write_bytes(content)
    assert mark.in_place == (how == "damaged")
    with pytest.raises(DeploymentStateError, match=r"deleted or replaced|damaged"):
        mark.raise_to(released(4))


def test_a_mark_that_cannot_be_written_stays_and_is_tried_again(path, mark, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mark_module.os, "pwrite", no_space)
        with pytest.raises(StorageError, match="No space left"):
            mark.raise_to(released(3))
    assert read_mark(path) == mark.last == released(0)
    with monkeypatch.context() as patch:
        patch.setattr(mark_module.os, "pwrite", lambda *_: 1)
        with pytest.raises(StorageError, match="a part of a line"):
            mark.raise_to(released(3))
    mark.raise_to(released(3))
    assert read_mark(path) == released(3)


def test_a_mark_that_was_written_although_the_write_failed_is_its_writers_own(path, mark, monkeypatch):
    pwrite = mark_module.os.pwrite

    def written_and_failed(*arguments):
        pwrite(*arguments)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(mark_module.os, "pwrite", written_and_failed)
        with pytest.raises(StorageError, match="Input/output"):
            mark.raise_to(released(3))
    mark.require_current()
    mark.raise_to(released(3))
    assert read_mark(path) == mark.last == released(3)


@pytest.mark.parametrize("lines", [(4, 5), (5, 4), (5,)])
def test_a_mark_of_an_earlier_release_is_read_and_learns_the_digest(path, lines):
    write_earlier_form(path, *lines)
    assert read_mark(path) == LastRelease(5, None)
    mark = Mark.open(path)
    with pytest.raises(DeploymentStateError, match="cannot take its place"):
        mark.raise_to(released(4))
    mark.raise_to(released(5))
    assert read_mark(path) == released(5)
    mark.raise_to(released(6))
    mark.close()
    assert read_mark(path) == released(6)
    assert path.stat().st_mode & 0o077 == 0
    assert [entry.name for entry in path.parent.iterdir()] == ["d.mark"]


def test_an_upgrade_that_fails_leaves_the_earlier_mark(path, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    write_earlier_form(path, 4, 5)
    mark = Mark.open(path)
    with monkeypatch.context() as patch:
        patch.setattr(mark_module.os, "fsync", no_space)
        with pytest.raises(StorageError, match="No space left"):
            mark.raise_to(released(5))
    assert read_mark(path) == LastRelease(5, None)
    mark.raise_to(released(5))
    mark.close()
    assert read_mark(path) == released(5)
