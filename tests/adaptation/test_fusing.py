"""When a training compiles what stands between its matrix products."""

import pytest
import torch
from tiny_models import build_tiny_model

from reticent.adaptation import fusing
from reticent.adaptation.fusing import chooses_to_fuse, training_flop
from reticent.adaptation.settings import LoraSettings
from reticent.ensemble.reading import read_architecture
from reticent.errors import InvalidValueError

LORA = LoraSettings(rank=2)


class Notes:
    """A progress that keeps its notes."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


@pytest.fixture
def architecture():
    return read_architecture(build_tiny_model("llama"))


@pytest.fixture
def compiler(monkeypatch):
    """Says whether there is a compiler; 1,000 operations a thread are worth compiling."""
    monkeypatch.setattr(fusing, "_FLOP_WORTH_COMPILING", 1000.0)
    return lambda there: monkeypatch.setattr(fusing, "can_compile", lambda: there)


def many_tokens(architecture):
    return 1000 * torch.get_num_threads() // training_flop(architecture, LORA) + 1


def test_operations_are_four_for_each_weight_from_the_lowest_adapted_block_up(architecture):
    model = build_tiny_model("llama")
    block = sum(p.numel() for p in model.model.layers[0].parameters() if p.ndim == 2)
    head = model.lm_head.weight.numel()
    num_layers = len(model.model.layers)
    assert training_flop(architecture, LORA) == 4 * (num_layers * block + head)
    assert training_flop(architecture, LoraSettings(rank=2, num_top_layers=1)) == 4 * (block + head)


def test_by_default_long_trainings_are_compiled_and_short_ones_are_not(architecture, compiler):
    compiler(there=True)
    notes = Notes()
    assert chooses_to_fuse(None, architecture, LORA, many_tokens(architecture), notes)
    assert len(notes.lines) == 1
    assert not chooses_to_fuse(None, architecture, LORA, 0, notes)
    assert len(notes.lines) == 1


def test_without_a_compiler_training_goes_on_and_says_what_one_would_bring(architecture, compiler):
    compiler(there=False)
    notes = Notes()
    assert not chooses_to_fuse(None, architecture, LORA, many_tokens(architecture), notes)
    assert "compiler" in notes.lines[0]
    assert not chooses_to_fuse(None, architecture, LORA, 0, notes)
    assert len(notes.lines) == 1


def test_what_was_asked_for_counts(architecture, compiler):
    compiler(there=True)
    assert chooses_to_fuse(True, architecture, LORA, 1, Notes())
    assert not chooses_to_fuse(False, architecture, LORA, many_tokens(architecture), Notes())


def test_asking_for_what_no_compiler_can_do_is_an_error(architecture, compiler):
    compiler(there=False)
    with pytest.raises(InvalidValueError, match="C\\+\\+ compiler"):
        chooses_to_fuse(True, architecture, LORA, 1, Notes())
    assert not chooses_to_fuse(False, architecture, LORA, 1, Notes())
