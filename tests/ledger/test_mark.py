import pytest

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger import mark as mark_module
from reticent.ledger.mark import Mark, read_mark


@pytest.fixture
def path(tmp_path):
    return tmp_path / "d.mark"


def test_a_mark_rises_and_is_found_again(path):
    mark = Mark.create(path)
    assert (mark.tokens, read_mark(path)) == (0, 0)
    for tokens in (1, 2, 9, 9, 4, 10**15):
        mark.raise_to(tokens)
        assert read_mark(path) == mark.tokens == max(tokens, 9 if tokens == 4 else 0)
    mark.close()
    assert path.stat().st_mode & 0o077 == 0
    again = Mark.open(path)
    again.raise_to(10**15 + 1)
    again.close()
    assert read_mark(path) == 10**15 + 1


def test_a_mark_is_never_created_twice(path):
    Mark.create(path).close()
    with pytest.raises(StorageError, match=r"d\.mark"):
        Mark.create(path)


@pytest.mark.parametrize("reopen", [False, True])
def test_a_write_that_is_cut_short_leaves_the_mark_before_it(path, reopen):
    mark = Mark.create(path)
    mark.raise_to(7)
    before = path.read_bytes()
    if reopen:
        mark.close()
        mark = Mark.open(path)
    mark.raise_to(12)
    mark.close()
    after = path.read_bytes()
    [start, *_, end] = [index for index, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    for cut in range(start, end + 1):
        path.write_bytes(after[:cut] + before[cut:])
        assert read_mark(path) == 7
    path.write_bytes(after)
    assert read_mark(path) == 12


@pytest.mark.parametrize("damage", [None, b"", b"-1", b"two", b"\xff" * 60, b"%020d %08x\n" % (5, 1)])
def test_a_lost_or_damaged_mark_is_refused(path, damage):
    if damage is not None:
        path.write_bytes(damage)
    for attempt in (read_mark, Mark.open):
        with pytest.raises(DeploymentStateError, match=r"d\.mark"):
            attempt(path)


def test_a_mark_that_cannot_be_written_stays_and_is_tried_again(path, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    mark = Mark.create(path)
    with monkeypatch.context() as patch:
        patch.setattr(mark_module.os, "pwrite", no_space)
        with pytest.raises(StorageError, match="No space left"):
            mark.raise_to(3)
    assert read_mark(path) == mark.tokens == 0
    mark.raise_to(3)
    assert read_mark(path) == 3
