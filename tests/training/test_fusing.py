"""When a training compiles what stands between its matrix products."""

import dataclasses

import pytest
import torch
from tiny_models import build_tiny_model

from reticent.errors import InvalidValueError
from reticent.layers.forward import batched_decoder
from reticent.training import compilation as fusing
from reticent.training.compilation import confirm_fusing, decide_fusing


class Notes:
    """A progress that keeps its notes."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def llama():
    return batched_decoder(build_tiny_model("llama")).architecture


@pytest.fixture
def compiler(monkeypatch):
    """Says whether there is a compiler; 1,000 operations a thread are worth compiling."""
    monkeypatch.setattr(fusing, "_FLOP_WORTH_COMPILING", 1000.0)
    return lambda there: monkeypatch.setattr(fusing, "why_not_compiled", lambda: None if there else "no Python.h")


def long():
    return 1000 * torch.get_num_threads()


def elsewhere(architecture):
    """The same base, not on the processor."""
    return dataclasses.replace(architecture, embedding_VD=architecture.embedding_VD.to("meta"))


def test_by_default_long_trainings_are_compiled_and_short_ones_are_not(compiler, llama):
    compiler(there=True)
    notes = Notes()
    assert decide_fusing(None, long(), llama, notes)
    assert len(notes.lines) == 1
    assert not decide_fusing(None, long() - 1, llama, notes)
    assert len(notes.lines) == 1


@pytest.mark.parametrize(
    ("family", "compiled"), [("llama", True), ("gptj", True), ("gpt2", False), ("opt", False), ("bloom", False)]
)
def test_by_default_only_bases_with_something_to_compile_are(compiler, family, compiled):
    compiler(there=True)
    notes = Notes()
    architecture = batched_decoder(build_tiny_model(family)).architecture
    assert decide_fusing(None, long(), architecture, notes) is compiled
    assert len(notes.lines) == compiled
    assert decide_fusing(True, 1, architecture, notes)
    compiler(there=False)
    notes = Notes()
    assert not decide_fusing(None, long(), architecture, notes)
    # Nobody is told to install what would bring nothing.
    assert len(notes.lines) == compiled


def test_without_a_compiler_training_goes_on_and_says_why_and_what_one_would_bring(compiler, llama):
    compiler(there=False)
    notes = Notes()
    assert not decide_fusing(None, long(), llama, notes)
    assert all(word in notes.lines[0] for word in ("no Python.h", "a tenth", "compiler", "cache folder"))
    assert not decide_fusing(None, long() - 1, llama, notes)
    assert len(notes.lines) == 1


def test_what_was_asked_for_counts(compiler, llama):
    compiler(there=True)
    assert decide_fusing(True, 1, llama, Notes())
    assert not decide_fusing(False, long(), llama, Notes())


def test_asking_for_what_cannot_be_compiled_is_an_error_that_says_why(compiler, llama):
    compiler(there=False)
    with pytest.raises(InvalidValueError, match=r"--compile: .*\(no Python\.h\).* C\+\+ compiler .*cache folder"):
        decide_fusing(True, 1, llama, Notes())
    assert not decide_fusing(False, 1, llama, Notes())


def test_compiling_is_for_processors(compiler, llama):
    compiler(there=True)
    assert not decide_fusing(None, long(), elsewhere(llama), Notes())
    with pytest.raises(InvalidValueError, match="not on meta"):
        decide_fusing(True, long(), elsewhere(llama), Notes())


@pytest.mark.parametrize("begun", [True, False])
def test_a_training_goes_on_as_it_was_begun(compiler, llama, begun):
    compiler(there=True)
    notes = Notes()
    assert confirm_fusing(begun, None, llama, notes) is begun
    assert confirm_fusing(begun, begun, llama, notes) is begun
    assert len(notes.lines) == 2 * begun
    with pytest.raises(InvalidValueError, match="begun with --compile" if begun else "begun with --no-compile"):
        confirm_fusing(begun, not begun, llama, notes)


def test_a_training_that_can_no_longer_go_on_compiled_does_not_go_on_otherwise(compiler, llama):
    compiler(there=False)
    with pytest.raises(InvalidValueError, match=r"begun compiled.*no Python\.h.*--no-compile and another --out"):
        confirm_fusing(True, None, llama, Notes())
    assert not confirm_fusing(False, None, llama, Notes())
    compiler(there=True)
    with pytest.raises(InvalidValueError, match=r"begun compiled.*not on meta"):
        confirm_fusing(True, None, elsewhere(llama), Notes())
