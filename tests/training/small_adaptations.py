"""Small adaptations, shared by the trainer's tests and the driver that is killed."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from reticent.text.template import TextTemplate
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.single_settings import SingleTrainingSettings, SplitSettings
from reticent.training.trainer import AdaptRequest

SMALL = TechniqueSettings(rank=2, dropout=0.2, bottleneck=4, prefix_tokens=3, p_tuning_tokens=3, prompt_tokens=2)


class Recorder:
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.expected = self.done = 0

    def note(self, line: str) -> None:
        self.notes.append(line)

    def begin(self, what: str, num_tokens: int) -> None:
        self.expected += num_tokens

    def advance(self, num_tokens: int) -> None:
        self.done += num_tokens


def write_texts(path: Path, count: int = 20, **extra: str) -> Path:
    """Records of five to eight random words, no two alike."""
    generator = np.random.default_rng(0)
    with path.open("w") as file:
        for _ in range(count):
            words = [
                "".join(chr(97 + c) for c in generator.integers(0, 26, 3)) for _ in range(generator.integers(5, 9))
            ]
            file.write(json.dumps({"text": " ".join(words), **extra}) + "\n")
    return path


def small_request(corpus: Path, model: Path, out: Path, **overrides: Any) -> AdaptRequest:
    """LoRA with dropout on 12 members, 2 epochs of 3 steps, validation: what a resumed training can get wrong."""
    defaults: dict[str, Any] = {
        "technique": Technique.LORA,
        "settings": SMALL,
        "template": TextTemplate(max_tokens=24),
        "split": SplitSettings(heldout_count=4, val_fraction=0.2),
        "training": SingleTrainingSettings(epochs=2, batch_size=4, learning_rate=1e-2),
    }
    return AdaptRequest(corpus=corpus, model=str(model), out=out, **(defaults | overrides))


def same_bytes(first: Path, second: Path) -> bool:
    """Whether two adapted folders hold the same weights and lists, byte for byte, and say the same about them."""
    names = [{p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} for folder in (first, second)]
    told = [json.loads((folder / "adapt.json").read_text()) | {"created": ""} for folder in (first, second)]
    return (
        names[0] == names[1]
        and told[0] == told[1]
        and all((first / n).read_bytes() == (second / n).read_bytes() for n in names[0] - {"adapt.json"})
    )
