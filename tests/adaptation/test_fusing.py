"""When a training compiles what stands between its matrix products."""

import pytest
import torch

from reticent.adaptation import fusing
from reticent.adaptation.fusing import chooses_to_fuse
from reticent.errors import InvalidValueError

CPU = torch.device("cpu")


class Notes:
    """A progress that keeps its notes."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


@pytest.fixture
def compiler(monkeypatch):
    """Says whether there is a compiler; 1,000 operations a thread are worth compiling."""
    monkeypatch.setattr(fusing, "_FLOP_WORTH_COMPILING", 1000.0)
    return lambda there: monkeypatch.setattr(fusing, "can_compile", lambda: there)


def long():
    return 1000 * torch.get_num_threads()


def test_by_default_long_trainings_are_compiled_and_short_ones_are_not(compiler):
    compiler(there=True)
    notes = Notes()
    assert chooses_to_fuse(None, long(), CPU, notes)
    assert len(notes.lines) == 1
    assert not chooses_to_fuse(None, long() - 1, CPU, notes)
    assert len(notes.lines) == 1


def test_without_a_compiler_training_goes_on_and_says_what_one_would_bring(compiler):
    compiler(there=False)
    notes = Notes()
    assert not chooses_to_fuse(None, long(), CPU, notes)
    assert "compiler" in notes.lines[0]
    assert not chooses_to_fuse(None, long() - 1, CPU, notes)
    assert len(notes.lines) == 1


def test_what_was_asked_for_counts(compiler):
    compiler(there=True)
    assert chooses_to_fuse(True, 1, CPU, Notes())
    assert not chooses_to_fuse(False, long(), CPU, Notes())


def test_asking_for_what_no_compiler_can_do_is_an_error(compiler):
    compiler(there=False)
    with pytest.raises(InvalidValueError, match="C\\+\\+ compiler"):
        chooses_to_fuse(True, 1, CPU, Notes())
    assert not chooses_to_fuse(False, 1, CPU, Notes())


def test_compiling_is_for_processors(compiler):
    compiler(there=True)
    gpu = torch.device("cuda:0")
    assert not chooses_to_fuse(None, long(), gpu, Notes())
    with pytest.raises(InvalidValueError, match="cuda:0"):
        chooses_to_fuse(True, long(), gpu, Notes())
