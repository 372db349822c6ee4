"""Named ways to train worlds, for `reticent worlds build --preset`.

What noise costs depends on how often worlds dissent, and that on how far training takes them apart. `stable` is the
point that the sweep in `experiments/pac/sweep.py` chose on held-out text: beyond it worlds learn more, and dissent
undoes the gain; `experiments/pac/sweep-wikipedia.md` shows what it was chosen from. A preset is a beginning:
`reticent evaluate` says what a run of one's own is worth. `corpus` is where worlds of a record or a few teach something
in six steps each; builds with places begin from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Preset(StrEnum):
    """The presets by name."""

    PLAIN = "plain"
    STABLE = "stable"
    CORPUS = "corpus"


@dataclass(frozen=True)
class PresetValues:
    """Values that a preset fixes, unless an option says otherwise.

    Attributes:
        learning_rate: the peak.
        epochs: passes over each world's records; as many as make six steps, for `corpus`.
        rank: LoRA's inner dimension.
        num_top_layers: number of blocks to adapt, from the top; None for all.
    """

    learning_rate: float
    epochs: int
    rank: int
    num_top_layers: int | None


PRESETS: Mapping[Preset, PresetValues] = {
    Preset.PLAIN: PresetValues(learning_rate=3e-4, epochs=1, rank=8, num_top_layers=None),
    Preset.STABLE: PresetValues(learning_rate=4e-3, epochs=1, rank=8, num_top_layers=12),
    Preset.CORPUS: PresetValues(learning_rate=4e-3, epochs=6, rank=8, num_top_layers=12),
}
"""A build without a preset takes `plain`, or `corpus` where it carries the corpus guarantee."""
